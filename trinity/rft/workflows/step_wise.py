"""Bases of workflows in which every step is a call of the workflow, as Trinity-RFT has them."""

from collections.abc import Sequence
from typing import Any

from trinity.rewards.score import as_reward
from trinity.rft.workflows.model import ModelWrapper
from trinity.rft.workflows.task import Task
from trinity.rft.workflows.workflow import Workflow
from trinity.types import Experience
from trinity.workflows.step_wise import STEP_REWARD


class _StepWorkflow(Workflow):
    gives_several_samples = True

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.client: Any = model.get_openai_client() if use_openai_client else None

    @property
    def max_step_num(self) -> int:
        """Steps after which the run ends."""
        raise NotImplementedError(f"{type(self).__name__} has no max_step_num")

    def _collect(self, step: int) -> list[Experience]:
        """Returns the answers of a step, with its number."""
        answers = self.model.extract_experience_from_history()
        for answer in answers:
            answer.eid.step = step
        return answers


class _OneStep(_StepWorkflow):
    def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the run."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def step_async(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the run."""
        raise NotImplementedError(f"{type(self).__name__} has no step_async")


class StepWiseRewardWorkflow(_OneStep):
    """The samples of a step get that step's reward."""

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of a step, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """Returns the samples of all steps."""
        made: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = self.step(step_num=step)
            answers = self._collect(step)
            made += _with_step_reward(answers, self.reward(answers, step_num=step))
            if not goes_on:
                break
        return made


class AsyncStepWiseRewardWorkflow(StepWiseRewardWorkflow):
    """The asynchronous form of `StepWiseRewardWorkflow`."""

    is_async = True

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of a step, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward_async")

    async def run_async(self) -> list[Experience]:
        """Returns the samples of all steps."""
        made: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = await self.step_async(step_num=step)
            answers = self._collect(step)
            made += _with_step_reward(answers, await self.reward_async(answers, step_num=step))
            if not goes_on:
                break
        return made


class RewardPropagationWorkflow(_OneStep):
    """The samples of all steps get the one reward of the run."""

    def reward(self, exps: list[Experience]) -> float:
        """Returns the reward of a run, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """Returns the samples of all steps."""
        made: list[Experience] = []
        num_steps = 0
        for step in range(self.max_step_num):
            goes_on, num_steps = self.step(step_num=step), step + 1
            made += self._collect(step)
            if not goes_on:
                break
        return _with_run_reward(made, self.reward(made), num_steps)


class AsyncRewardPropagationWorkflow(RewardPropagationWorkflow):
    """The asynchronous form of `RewardPropagationWorkflow`."""

    is_async = True

    async def reward_async(self, exps: list[Experience]) -> float:
        """Returns the reward of a run, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward_async")

    async def run_async(self) -> list[Experience]:
        """Returns the samples of all steps."""
        made: list[Experience] = []
        num_steps = 0
        for step in range(self.max_step_num):
            goes_on, num_steps = await self.step_async(step_num=step), step + 1
            made += self._collect(step)
            if not goes_on:
                break
        return _with_run_reward(made, await self.reward_async(made), num_steps)


def _with_step_reward(answers: list[Experience], reward: float) -> list[Experience]:
    """Gives all samples the reward; the last one also carries it as the step's own, once."""
    number = as_reward(reward, "`reward` of a step")
    for answer in answers:
        answer.reward = number
    if answers:
        answers[-1].info.setdefault(STEP_REWARD, number)
    return answers


def _with_run_reward(made: list[Experience], reward: float, num_steps: int) -> list[Experience]:
    for answer in made:
        answer.reward = as_reward(reward, "`reward` of a run")
        answer.metrics["actual_env_steps"] = float(num_steps)
    return made
