"""One question, one answer, and its grade by a model behind an OpenAI-compatible address."""

import os
from typing import TYPE_CHECKING, ClassVar

from trinity.errors import UserError
from trinity.types import Experience, FinishReason
from trinity.workflows.model_access import OPENAI_MISSING
from trinity.workflows.rubric_judge_workflow import (
    RubricJudgeWorkflow,
    judge_messages,
    parse_grade,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletionMessageParam

_ADDRESS, _KEY = "judge_api_base_url_env", "judge_api_key_env"


class RubricJudgeOpenAIWorkflow(RubricJudgeWorkflow):
    """Grades as `rubric_judge_workflow` does, by the model `judge_model_name`.

    The address and the key are in the variables named by `judge_api_base_url_env` and
    `judge_api_key_env`: OPENAI_BASE_URL and OPENAI_API_KEY if left out.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset(
        {"reply_prefix", "judge_model_name", _ADDRESS, _KEY}
    )

    async def run_async(self) -> list[Experience]:
        """Returns one experience, judged."""
        criteria, name = self._criteria(), self._judge_name()
        async with self._client() as client:
            experiences = await self.model.chat_async(self.messages())
            for experience in experiences:
                grade = None
                if experience.finish_reason is not FinishReason.PROMPT_TRUNCATED:
                    grade = await self._asked(client, name, criteria, experience)
                self._set_grade(experience, grade)
        return experiences

    async def _asked(
        self, client: "AsyncOpenAI", name: str, criteria: str, experience: Experience
    ) -> int | None:
        answer = self.reply_prefix + experience.response_text
        asked = judge_messages(self.task.question, answer, criteria)
        messages: list[ChatCompletionMessageParam] = [
            {"role": "system", "content": asked[0]["content"]},
            {"role": "user", "content": asked[1]["content"]},
        ]
        reply = await client.chat.completions.create(model=name, messages=messages)
        return parse_grade(reply.choices[0].message.content or "")

    def _judge_name(self) -> str:
        name = self.task.workflow_args.get("judge_model_name")
        if not isinstance(name, str) or not name:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} needs the judge's name: set "
                "`workflow_args.judge_model_name`"
            )
        return name

    def _client(self) -> "AsyncOpenAI":
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise UserError(OPENAI_MISSING) from error
        return AsyncOpenAI(
            base_url=self._variable(_ADDRESS, "OPENAI_BASE_URL"),
            api_key=self._variable(_KEY, "OPENAI_API_KEY"),
        )

    def _variable(self, argument: str, otherwise: str) -> str:
        name = str(self.task.workflow_args.get(argument) or otherwise)
        value = os.environ.get(name, "")
        if not value:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} reads the environment "
                f"variable {name}, which is not set: give it to the explorer, or name another one "
                f"in `workflow_args.{argument}`"
            )
        return value
