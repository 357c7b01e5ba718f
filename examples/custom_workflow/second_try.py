"""A custom workflow in one file: after a wrong answer the model may try again."""

from trinity.plugins import WORKFLOWS
from trinity.types import Experience
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow


@WORKFLOWS.register_module("second_try")
class SecondTry(MultiTurnWorkflow):
    """Reward 1 for the right answer at once, a half for it at the second try, else 0."""

    is_async = True
    shares_loop = True  # it never blocks
    gives_several_samples = True

    async def run_async(self) -> list[Experience]:
        messages: list[Message] = [{"role": "user", "content": self.task.task_desc}]
        reward = 0.0
        for worth in (1.0, 0.5):
            (turn,) = await self.model.chat_async(messages)
            messages.append({"role": "assistant", "content": turn.response_text})
            if turn.response_text.strip() == str(self.task.truth):
                reward = worth
                break
            messages.append({"role": "user", "content": "no"})
        return self.experiences(messages, reward, info={"num_messages": len(messages)})
