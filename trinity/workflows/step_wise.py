"""Bases of workflows in which every step is a call of the workflow.

class Walk(StepWiseRewardWorkflow):
    max_step_num = 10

    def step(self, step_num: int) -> bool:
        (turn,) = self.model.chat(self.messages())
        self.done = self.environment.go(turn.response_text)
        return not self.done

    def reward(self, exps: list[Experience], step_num: int) -> float:
        return float(self.done)
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from trinity.rewards.score import as_reward
from trinity.types import Experience
from trinity.workflows.model import ModelWrapper
from trinity.workflows.task import Task
from trinity.workflows.workflow import Workflow

STEP_REWARD = "step_reward"
"""Key under which `gigpo` finds the reward of a step alone."""
ACTUAL_STEPS = "actual_env_steps"
"""Metric with the number of steps."""


class StepWorkflow(Workflow):
    """The common part: calls are recorded, and collected after each step; a step may make no calls.

    Samples are numbered in the order of the steps, from 0. With one call per step, the number is
    the step's, as `step_wise_grpo` and `gigpo` expect.
    """

    gives_several_samples = True
    keeps_history = True

    def __init__(
        self,
        *,
        task: Task,
        model: ModelWrapper,
        auxiliary_models: Sequence[ModelWrapper] | None = None,
        use_openai_client: bool = True,
    ) -> None:
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self._uses_client = use_openai_client

    @cached_property
    def client(self) -> Any:
        """The blocking OpenAI client of the model; None with `use_openai_client` false."""
        return self.model.get_openai_client() if self._uses_client else None

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

    def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the run."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def step_async(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the run."""
        raise NotImplementedError(f"{type(self).__name__} has no step_async")


class StepWiseRewardWorkflow(StepWorkflow):
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


class RewardPropagationWorkflow(StepWorkflow):
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
        answer.metrics[ACTUAL_STEPS] = float(num_steps)
    return made
