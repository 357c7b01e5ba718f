"""Bases of workflows in which every step of an episode has a reward of its own."""

from trinity.types import Experience
from trinity.workflows.workflow import Workflow

STEP_REWARD = "step_reward"
"""Where `gigpo` looks for what a step alone gave."""


class Episode(Workflow):
    """What the bases have in common: calls are recorded, and taken after each step.

    Samples are numbered in the order of the steps, from 0; with one call a step the number is the
    step's, as `step_wise_grpo` and `gigpo` take it. A step may make no call.
    """

    keeps_history = True
    max_step_num: int = 1
    """Steps after which the episode ends; a property of this name may say it of each task."""

    def _made(self) -> list[Experience]:
        """What the model gave since it was asked last."""
        return self.model.extract_experience_from_history()


class StepWiseRewardWorkflow(Episode):
    """Goes step by step, in a thread; the samples of a step get that step's reward.

    class Walk(StepWiseRewardWorkflow):
        max_step_num = 10

        def step(self, step_num: int) -> bool:
            (turn,) = self.model.chat(self.messages())
            self.done = self.environment.go(turn.response_text)
            return not self.done

        def reward(self, exps: list[Experience], step_num: int) -> float:
            return float(self.done)
    """

    # A workflow writes both; one that does not fails with the sentence that names what it lacks.
    def step(self, step_num: int) -> bool:
        """Make a step, from 0; False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def reward(self, exps: list[Experience], step_num: int) -> float:
        """What the samples of the step are worth."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """The samples of all steps."""
        episode: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = self.step(step_num=step)
            made = self._made()
            episode += rewarded_step(made, self.reward(made, step_num=step))
            if not goes_on:
                break
        return episode


class AsyncStepWiseRewardWorkflow(Episode):
    """The same on the event loop."""

    is_async = True

    # A workflow writes both; one that does not fails with the sentence that names what it lacks.
    async def step(self, step_num: int) -> bool:
        """Make a step, from 0; False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def reward(self, exps: list[Experience], step_num: int) -> float:
        """What the samples of the step are worth."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    async def run_async(self) -> list[Experience]:
        """The samples of all steps."""
        episode: list[Experience] = []
        for step in range(self.max_step_num):
            goes_on = await self.step(step_num=step)
            made = self._made()
            episode += rewarded_step(made, await self.reward(made, step_num=step))
            if not goes_on:
                break
        return episode


def rewarded_step(made: list[Experience], reward: float) -> list[Experience]:
    """All of them have the reward; what the step gave is counted once, with its last sample."""
    for one in made:
        one.reward = reward
    if made:
        made[-1].info.setdefault(STEP_REWARD, reward)
    return made
