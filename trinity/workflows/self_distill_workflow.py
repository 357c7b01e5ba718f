"""One question, one answer, and what the policy itself makes of the answer once it has a hint."""

from collections.abc import Mapping
from typing import ClassVar, cast

import numpy as np

from trinity.data.conversations import text_part
from trinity.errors import UserError
from trinity.types import Alignment, Array, Experience, FinishReason, FloatArray, JsonValue
from trinity.workflows.messages import Message, as_mappings
from trinity.workflows.on_policy_distill_workflow import TEACHER_LOGPROBS
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.workflow import Arguments

HINT = "{hint}"
TEMPLATE = (
    "\n\nA correct answer, which you may use but not mention:\n{hint}\n\nNow answer the question."
)
"""Added to the question that the teacher sees."""


class SelfDistillWorkflow(SimpleWorkflow):
    """Used with `sdpo` and `grpo_distill`; the teacher is the policy, with a hint in its prompt.

    The hint is the task's truth, or its column `hint_key`, as a solution or an error message;
    `hint_template`, with `{hint}` in it, is added to the question. Without a hint an answer is
    compared with itself. The weights are those that made the answer, which is sampled at
    temperature 1. The reward is the taskset's, or 0 without one.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset(
        {"hint_key", "hint_template", "reply_prefix"}
    )
    usual_args: ClassVar[Mapping[str, JsonValue]] = {"hint_key": "", "hint_template": TEMPLATE}

    async def run_async(self) -> list[Experience]:
        """Returns one experience with the log-probabilities of the hinted policy."""
        self._check_temperature()
        hinted = self._hinted_messages()
        experiences = await self.model.chat_async(self.messages(), tools=self.task.tools)
        for experience in experiences:
            if not self.task.is_eval:
                logprobs = await self._hinted_logprobs(experience, hinted)
                experience.arrays[TEACHER_LOGPROBS] = Array(logprobs, Alignment.RESPONSE)
                experience.metrics["hint_gain"] = _gain(experience, logprobs)
            if self.task.reward is None:
                experience.reward = 0.0
            else:
                await self._score(experience, self._reward())
        return experiences

    def _check_temperature(self) -> None:
        temperature = self.model.sampling.temperature
        if temperature != 1.0 and not self.task.is_eval:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} compares log-probabilities "
                f"at temperature 1 with those of answers at {temperature:g}: give `temperature: 1`"
            )

    def _hinted_messages(self) -> list[Message] | None:
        """Returns the messages with the hint in the last question; None where there is no hint."""
        key, template = (str(self._argument(name)) for name in ("hint_key", "hint_template"))
        if HINT not in template:
            raise UserError(
                f"taskset {self.task.taskset!r}: workflow_args.hint_template has no {HINT}: write "
                "where the hint goes"
            )
        hint = self.task.column(key) if key else self.task.truth
        if hint in (None, ""):
            return None
        messages = self.messages()
        place = max(i for i, message in enumerate(messages) if message["role"] == "user")
        asked, said = messages[place]["content"], template.replace(HINT, str(hint))
        content = asked + said if isinstance(asked, str) else [*asked, text_part(said)]
        messages[place] = cast(Message, {**messages[place], "content": content})
        return messages

    def _argument(self, name: str) -> JsonValue:
        return Arguments(self).value(name)

    async def _hinted_logprobs(
        self, experience: Experience, hinted: list[Message] | None
    ) -> FloatArray:
        """Returns log-probabilities of the answer's tokens; the answer's own without a hint."""
        sequence = experience.sequence
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            return np.zeros(sequence.response_length, dtype=np.float32)
        if hinted is None:
            return sequence.rollout_logprobs.copy()
        messages = await self.model.load_images(as_mappings(hinted))
        prompt = self.model.tokenizer.encode_chat(messages, self.task.tools)
        answer = sequence.tokens[sequence.prompt_length :].tolist()
        tokens = [*prompt.token_ids, *answer]
        logprobs = await self.model.token_logprobs(tokens, images=prompt.image_refs)
        return logprobs[len(prompt.token_ids) - 1 :]


def _gain(experience: Experience, hinted_logprobs: FloatArray) -> float:
    """Returns how much likelier the answer is with the hint."""
    sequence = experience.sequence
    gaps = hinted_logprobs - sequence.rollout_logprobs
    return float(gaps[sequence.action_mask].sum())
