"""One question, one answer, and a teacher's log-probabilities of the answer's tokens."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from trinity.errors import UserError
from trinity.types import Alignment, Array, Experience, FinishReason, FloatArray, JsonValue
from trinity.workflows.model import ModelWrapper
from trinity.workflows.simple_workflow import SimpleWorkflow
from trinity.workflows.workflow import Arguments

TEACHER_LOGPROBS = "teacher_logprobs"
"""The array from which trainers read them."""


class OnPolicyDistillWorkflow(SimpleWorkflow):
    """Used with `on_policy_distill` and similar; the teacher is the first auxiliary model.

    With `teacher_key`, a row's value in that column is its teacher's `name`. A teacher must have
    the policy's tokenizer, and read images if the row has some. The reward is the taskset's, or 0
    without one, and is not trained on; the metric `kl_divergence` is the policy's log-probabilities
    minus the teacher's, summed over the answer. `temperature` is the teacher's and must be 1.
    """

    known_args: ClassVar[frozenset[str] | None] = frozenset(
        {"temperature", "reply_prefix", "teacher_key"}
    )
    usual_args: ClassVar[Mapping[str, JsonValue]] = {"temperature": 1.0, "teacher_key": ""}

    async def run_async(self) -> list[Experience]:
        """Returns one experience with the teacher's log-probabilities."""
        teacher = self._teacher()
        temperature = Arguments(self).number("temperature")
        experiences = await self.model.chat_async(self.messages(), tools=self.task.tools)
        for experience in experiences:
            logprobs = await self._teacher_logprobs(experience, teacher, temperature)
            experience.arrays[TEACHER_LOGPROBS] = Array(logprobs, Alignment.RESPONSE)
            experience.metrics["kl_divergence"] = _divergence(experience, logprobs)
            await self._score_or_zero(experience)
        return experiences

    def _teacher(self) -> ModelWrapper:
        if not self.auxiliary_model_wrappers:
            raise UserError(
                f"taskset {self.task.taskset!r}: {type(self).__name__} needs a teacher: give one "
                "with the policy's tokenizer in `explorer.auxiliary_models`"
            )
        key = str(Arguments(self).value("teacher_key"))
        if not key:
            return self.auxiliary_model_wrappers[0]
        asked = self.task.column(key)
        for model in self.auxiliary_model_wrappers:
            if model.name == asked:
                return model
        raise UserError(
            f"taskset {self.task.taskset!r}: a row has {asked!r} in the column `{key}` "
            "(`teacher_key`), and none of `explorer.auxiliary_models` has this `name`"
        )

    async def _teacher_logprobs(
        self, experience: Experience, teacher: ModelWrapper, temperature: float
    ) -> FloatArray:
        """Returns the teacher's log-probabilities of the answer; zeros if they are missing."""
        sequence = experience.sequence
        if experience.finish_reason is FinishReason.PROMPT_TRUNCATED:
            return np.zeros(sequence.response_length, dtype=np.float32)
        response = sequence.tokens[sequence.prompt_length :].tolist()
        if teacher.text_of(response) != self.model.text_of(response):
            raise UserError(
                f"taskset {self.task.taskset!r}: the teacher reads "
                f"{teacher.text_of(response)[:80]!r} in tokens that the policy means as "
                f"{self.model.text_of(response)[:80]!r}: it needs the same tokenizer"
            )
        tokens, images = sequence.tokens.tolist(), experience.blobs
        logprobs = await teacher.token_logprobs(tokens, temperature, images)
        return logprobs[sequence.prompt_length - 1 :]

    async def _score_or_zero(self, experience: Experience) -> None:
        if self.task.reward is None and self.default_reward is None:
            experience.reward = 0.0
        else:
            await self._score(experience, self._reward())


def _divergence(experience: Experience, teacher_logprobs: FloatArray) -> float:
    sequence = experience.sequence
    gaps = sequence.rollout_logprobs - teacher_logprobs
    return float(gaps[sequence.action_mask].sum())
