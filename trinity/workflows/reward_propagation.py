"""Bases of workflows in which every step gets the reward of the whole episode."""

from trinity.types import Experience
from trinity.workflows.step_wise import StepWorkflow

ACTUAL_STEPS = "actual_env_steps"
"""Metric with the number of steps."""


class RewardPropagationWorkflow(StepWorkflow):
    """Runs step by step in a thread, with one reward at the end.

    class Walk(RewardPropagationWorkflow):
        max_step_num = 10

        def step(self, step_num: int) -> bool:
            (turn,) = self.model.chat(self.messages())
            return self.environment.go(turn.response_text)

        def reward(self, exps: list[Experience]) -> float:
            return float(self.environment.is_won)
    """

    # Subclasses must define both; NotImplementedError names the one that is missing.
    def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def reward(self, exps: list[Experience]) -> float:
        """Returns the reward of the episode; `exps` are the samples of all steps."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """Returns the samples of all steps."""
        num_steps = 0
        goes_on = True
        while goes_on and num_steps < self.max_step_num:
            goes_on = self.step(step_num=num_steps)
            num_steps += 1
        episode = self._collect_answers()
        return assign_episode_reward(episode, self.reward(episode), num_steps)


class AsyncRewardPropagationWorkflow(StepWorkflow):
    """The asynchronous form of `RewardPropagationWorkflow`, on the event loop."""

    is_async = True

    # Subclasses must define both; NotImplementedError names the one that is missing.
    async def step(self, step_num: int) -> bool:
        """Makes a step, counted from 0; returning False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def reward(self, exps: list[Experience]) -> float:
        """Returns the reward of the episode; `exps` are the samples of all steps."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    async def run_async(self) -> list[Experience]:
        """Returns the samples of all steps."""
        num_steps = 0
        goes_on = True
        while goes_on and num_steps < self.max_step_num:
            goes_on = await self.step(step_num=num_steps)
            num_steps += 1
        episode = self._collect_answers()
        return assign_episode_reward(episode, await self.reward(episode), num_steps)


def assign_episode_reward(
    episode: list[Experience], reward: float, num_steps: int
) -> list[Experience]:
    """Gives every sample the reward of the episode."""
    for sample in episode:
        sample.reward = reward
        sample.metrics[ACTUAL_STEPS] = float(num_steps)
    return episode
