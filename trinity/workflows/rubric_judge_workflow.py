"""One question, one answer, and another model's judgement of it by the rubric of the row."""

import re
from collections.abc import Sequence
from typing import ClassVar

from trinity.errors import UserError
from trinity.types import Experience, FinishReason, JsonValue
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper
from trinity.workflows.simple_workflow import SimpleWorkflow

RUBRIC = "rubric"
"""Column with the criteria: a list of sections with `description` and `weight`."""
BEST = 10
INSTRUCTIONS = f"""\
You grade answers to questions. You are given a question, an answer and the criteria that a good \
answer meets, each with its weight: the higher the weight, the more the criterion counts. Judge by \
these criteria alone. Say briefly which of them are met. Then give the whole answer one grade, a \
whole number from 1 (none is met) to {BEST} (all are met), in this form and nothing after it:
<grade>number</grade>"""
_GRADE = re.compile(r"<grade>\s*(\d+)\s*</grade>")


class RubricJudgeWorkflow(SimpleWorkflow):
    """Rewards the policy's answer by a tenth of the grade that the first auxiliary model gives.

    Where the judge gives no grade the reward is 0 and the metric `judge_success` as well.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset({"reply_prefix"})

    async def run_async(self) -> list[Experience]:
        """One experience, judged."""
        judge, criteria = self._judge(), self._criteria()
        experiences = await self.model.chat_async(self.messages())
        for experience in experiences:
            grade = await self._grade(judge, criteria, experience)
            experience.reward = 0.0 if grade is None else grade / BEST
            experience.reward_parts = {"rubric": experience.reward}
            experience.metrics |= {
                "rubric": experience.reward,
                "judge_success": float(grade is not None),
            }
        return experiences

    def _judge(self) -> ModelWrapper:
        if not self.auxiliary_model_wrappers:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} asks another model for its "
                "judgement: give one in `explorer.auxiliary_models`"
            )
        return self.auxiliary_model_wrappers[0]

    def _criteria(self) -> str:
        """Raises: UserError when the row's rubric is none."""
        given = self.task.raw_task.get(RUBRIC)
        if not isinstance(given, list) or not given:
            raise UserError(
                f"taskset {self.task.taskset!r}, row {self.task.index}: its column `{RUBRIC}` is "
                "no list of criteria, each with `description` and `weight`: give one"
            )
        return "\n".join(_criterion(number, one) for number, one in enumerate(given, 1))

    async def _grade(
        self, judge: ModelWrapper, criteria: str, experience: Experience
    ) -> int | None:
        """None where the judge gives none; of a prompt that was too long nothing is judged."""
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            return None
        answer = self.reply_prefix + experience.response_text
        [judgement] = await judge.chat_async(_question(self.task.task_desc, answer, criteria))
        return grade_in(judgement.response_text)


def grade_in(judgement: str) -> int | None:
    """The last grade in a judge's words, if it is one."""
    grades = [int(one) for one in _GRADE.findall(judgement)]
    return grades[-1] if grades and 1 <= grades[-1] <= BEST else None


def _question(question: str, answer: str, criteria: str) -> Sequence[Message]:
    text = f"Question:\n{question}\n\nAnswer:\n{answer}\n\nCriteria:\n{criteria}"
    return [Message(role="system", content=INSTRUCTIONS), Message(role="user", content=text)]


def _criterion(number: int, given: JsonValue) -> str:
    if not isinstance(given, dict):
        return f"{number}. {given}"
    return f"{number}. (weight {given.get('weight', 1)}) {given.get('description', '')}"
