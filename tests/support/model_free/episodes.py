"""Workflows of several steps."""

from trinity.types import Experience
from trinity.workflows.step_wise import AsyncStepWiseRewardWorkflow


class Walk(AsyncStepWiseRewardWorkflow):
    """Two steps, each from a state that every run shares, rewarded by their first letter."""

    shares_loop = True
    max_step_num = 2

    async def step_async(self, step_num: int) -> bool:
        """One call."""
        (turn,) = await self.model.chat_async(
            [{"role": "user", "content": f"{self.task.task_desc} step {step_num}"}]
        )
        turn.info["env_state_hash"] = f"{self.task.row} {step_num}"
        return True

    async def reward_async(self, exps: list[Experience], step_num: int) -> float:
        """A number from 0 to 6."""
        assert exps[0].info["env_state_hash"] == f"{self.task.row} {step_num}"
        return float(ord(exps[0].response_text[0]) % 7)
