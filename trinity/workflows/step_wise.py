"""Bases of workflows in which every step of an episode has its own reward."""

from trinity.types import Experience
from trinity.workflows.workflow import Workflow

STEP_REWARD = "step_reward"
"""Key under which `gigpo` finds the reward of a step alone."""


class StepWorkflow(Workflow):
    """The common part of the bases: calls are recorded, and collected after each step.

    Samples are numbered in the order of the steps, from 0. With one call per step, the number is
    the step's, as `step_wise_grpo` and `gigpo` expect. A step may make no call.
    """

    gives_several_samples = True
    keeps_history = True
    max_step_num: int = 1
    """Steps after which the episode ends; a property may set it for each task."""

    def _collect_answers(self) -> list[Experience]:
        """Returns the model's answers since the last call of this method."""
        return self.model.extract_experience_from_history()


class StepWiseRewardWorkflow(StepWorkflow):
    """Runs step by step in a thread; the samples of a step get that step's reward.

    class Walk(StepWiseRewardWorkflow):
        max_step_num = 10

        def step(self, step_num: int) -> bool:
            (turn,) = self.model.chat(self.messages())
            self.done = self.environment.go(turn.response_text)
            return not self.done

        def reward(self, exps: list[Experience], step_num: int) -> float:
            return float(self.done)
    """

    # Subclasses must define both; NotImplementedError names the one that is missing.
    def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of the step, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """Returns the samples of all steps."""
        episode: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = self.step(step_num=step)
            made = self._collect_answers()
            episode += assign_step_reward(made, self.reward(made, step_num=step))
            if not goes_on:
                break
        return episode


class AsyncStepWiseRewardWorkflow(StepWorkflow):
    """The asynchronous form of `StepWiseRewardWorkflow`, on the event loop."""

    is_async = True

    # Subclasses must define both; NotImplementedError names the one that is missing.
    async def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def reward(self, exps: list[Experience], step_num: int) -> float:
        """Returns the reward of the step, whose samples are `exps`."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    async def run_async(self) -> list[Experience]:
        """Returns the samples of all steps."""
        episode: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = await self.step(step_num=step)
            made = self._collect_answers()
            episode += assign_step_reward(made, await self.reward(made, step_num=step))
            if not goes_on:
                break
        return episode


def assign_step_reward(made: list[Experience], reward: float) -> list[Experience]:
    """Gives all samples the reward; the last one also carries it as the step's own, once."""
    for sample in made:
        sample.reward = reward
    if made:
        made[-1].info.setdefault(STEP_REWARD, reward)
    return made
