"""A workflow whose samples get their rewards later."""

from trinity.rewards.reward import BoundReward
from trinity.types import Experience
from trinity.workflows.simple_workflow import SimpleWorkflow


class LaterReward(SimpleWorkflow):
    """Asks, and leaves the score to somebody else."""

    async def _score(self, experience: Experience, reward: BoundReward) -> None:
        del experience, reward
