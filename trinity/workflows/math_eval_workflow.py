r"""A mathematical question for evaluations, sampled as in Qwen2.5-Math's own evaluation."""

from functools import partial
from typing import ClassVar

from trinity.rewards.math_grading import is_right_answer, last_boxed
from trinity.rewards.reward import REWARD_POOL
from trinity.types import Experience
from trinity.workflows.messages import Message
from trinity.workflows.workflow import Workflow

QUESTION, ANSWER = "question", "answer"
"""Columns; the taskset's format may name another column for the truth."""
SYSTEM_PROMPT = "Please reason step by step, and put your final answer within \\boxed{}."
TEMPERATURE, TOP_P = 0.6, 0.8


class MathEvalWorkflow(Workflow):
    """Accuracy of the last boxed answer; temperature 0.6 and top_p 0.8 override the taskset.

    The question is the column `question`, the truth the taskset's `response_key`, else `answer`.
    """

    is_async = True
    shares_loop = True
    known_args: ClassVar[frozenset[str] | None] = frozenset()

    async def run_async(self) -> list[Experience]:
        """Returns one experience with the metric `accuracy`."""
        question = str(self.task.column(QUESTION))
        messages = [
            Message(role="system", content=self.task.system_prompt or SYSTEM_PROMPT),
            Message(role="user", content=question),
        ]
        experiences = await self.model.chat_async(messages, temperature=TEMPERATURE, top_p=TOP_P)
        for experience in experiences:
            accuracy = await REWARD_POOL.run_in_thread(partial(self._accuracy, experience))
            experience.reward = accuracy
            experience.reward_parts = experience.metrics = {"accuracy": accuracy}
        return experiences

    def _accuracy(self, experience: Experience) -> float:
        answer = last_boxed(experience.response_text) or ""
        truth = self.task.truth if self.task.truth is not None else self.task.filled(ANSWER)
        return float(is_right_answer(answer, last_boxed(str(truth)) or str(truth)))
