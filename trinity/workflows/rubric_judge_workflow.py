"""One question, one answer, and its grade by another model under the row's rubric."""

import re
from collections.abc import Sequence
from typing import ClassVar

from trinity.data.rows import row_name
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
    """Rewards the policy's answer with a tenth of the grade given by the first auxiliary model.

    If the judge gives no grade, the reward and the metric `judge_success` are 0.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset({"reply_prefix"})

    async def run_async(self) -> list[Experience]:
        """Returns one experience, judged."""
        judge, criteria = self._judge(), self._criteria()
        experiences = await self.model.chat_async(self.messages(), tools=self.task.tools)
        for experience in experiences:
            self._set_grade(experience, await self._grade(judge, criteria, experience))
        return experiences

    def _set_grade(self, experience: Experience, grade: int | None) -> None:
        """Sets the reward by the grade; None is a judge without a grade."""
        experience.reward = 0.0 if grade is None else grade / BEST
        experience.reward_parts = {"rubric": experience.reward}
        experience.metrics |= {
            "rubric": experience.reward,
            "judge_success": float(grade is not None),
        }

    def _judge(self) -> ModelWrapper:
        if not self.auxiliary_model_wrappers:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} needs another model as the "
                "judge: give one in `explorer.auxiliary_models`"
            )
        return self.auxiliary_model_wrappers[0]

    def _criteria(self) -> str:
        """Formats the row's rubric; raises UserError when it is not a list of criteria."""
        rubric = self.task.raw_task.get(RUBRIC)
        if not isinstance(rubric, list) or not rubric:
            raise UserError(
                f"taskset {self.task.taskset!r}, {row_name(self.task.row)}: "
                f"its column `{RUBRIC}` is "
                "no list of criteria, each with `description` and `weight`: give one"
            )
        return "\n".join(_criterion(number, entry) for number, entry in enumerate(rubric, 1))

    async def _grade(
        self, judge: ModelWrapper, criteria: str, experience: Experience
    ) -> int | None:
        """Returns the grade, or None without one; a prompt that was too long is not judged."""
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            return None
        answer = self.reply_prefix + experience.response_text
        [judgement] = await judge.chat_async(judge_messages(self.task.question, answer, criteria))
        return parse_grade(judgement.response_text)


def parse_grade(judgement: str) -> int | None:
    """Returns the last grade in a judge's reply, if it is valid."""
    grades = [int(digits) for digits in _GRADE.findall(judgement)]
    return grades[-1] if grades and 1 <= grades[-1] <= BEST else None


def judge_messages(question: str, answer: str, criteria: str) -> Sequence[Message]:
    """Returns the judge's prompt: the instructions, then question, answer and criteria."""
    text = f"Question:\n{question}\n\nAnswer:\n{answer}\n\nCriteria:\n{criteria}"
    return [Message(role="system", content=INSTRUCTIONS), Message(role="user", content=text)]


def _criterion(number: int, entry: JsonValue) -> str:
    if not isinstance(entry, dict):
        return f"{number}. {entry}"
    return f"{number}. (weight {entry.get('weight', 1)}) {entry.get('description', '')}"
