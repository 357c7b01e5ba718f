"""Bases of workflows whose episode has one reward, which every step gets."""

from trinity.types import Experience
from trinity.workflows.step_wise import Episode

ACTUAL_STEPS = "actual_env_steps"
"""Metric: how many steps there were."""


class RewardPropagationWorkflow(Episode):
    """Goes step by step, in a thread, and is rewarded at the end.

    class Walk(RewardPropagationWorkflow):
        max_step_num = 10

        def step(self, step_num: int) -> bool:
            (turn,) = self.model.chat(self.messages())
            return self.environment.go(turn.response_text)

        def reward(self, exps: list[Experience]) -> float:
            return float(self.environment.is_won)
    """

    # A workflow writes both; one that does not fails with the sentence that names what it lacks.
    def step(self, step_num: int) -> bool:
        """Make a step, from 0; False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    def reward(self, exps: list[Experience]) -> float:
        """What the episode is worth; `exps` are the samples of all steps."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    def run(self) -> list[Experience]:
        """The samples of all steps."""
        num_steps = 0
        goes_on = True
        while goes_on and num_steps < self.max_step_num:
            goes_on = self.step(step_num=num_steps)
            num_steps += 1
        episode = self._made()
        return rewarded_episode(episode, self.reward(episode), num_steps)


class AsyncRewardPropagationWorkflow(Episode):
    """The same on the event loop."""

    is_async = True

    # A workflow writes both; one that does not fails with the sentence that names what it lacks.
    async def step(self, step_num: int) -> bool:
        """Make a step, from 0; False ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} has no step")

    async def reward(self, exps: list[Experience]) -> float:
        """What the episode is worth; `exps` are the samples of all steps."""
        raise NotImplementedError(f"{type(self).__name__} has no reward")

    async def run_async(self) -> list[Experience]:
        """The samples of all steps."""
        num_steps = 0
        goes_on = True
        while goes_on and num_steps < self.max_step_num:
            goes_on = await self.step(step_num=num_steps)
            num_steps += 1
        episode = self._made()
        return rewarded_episode(episode, await self.reward(episode), num_steps)


def rewarded_episode(episode: list[Experience], reward: float, num_steps: int) -> list[Experience]:
    """Every sample with the reward of the whole."""
    for one in episode:
        one.reward = reward
        one.metrics[ACTUAL_STEPS] = float(num_steps)
    return episode
