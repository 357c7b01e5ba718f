"""Makes the experiences that answers of the model are recorded as."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trinity.errors import UserError
from trinity.types import (
    ROUTED_EXPERTS,
    Alignment,
    Array,
    Experience,
    FinishReason,
    SamplingParams,
    VersionSpan,
)
from trinity.types import Sequence as TokenSequence
from trinity.workflows.generation import ChatTokenizer, Generation, ModelLimits, Prompt
from trinity.workflows.sampling import likeliest_arrays, truncate_at_stop

AUXILIARY_MODEL = "auxiliary_model"
"""Key of an experience's `info` with the name of the auxiliary model that made it."""


class CallHistory:
    """Keeps experiences in the order of the calls, not of the answers."""

    def __init__(self) -> None:
        self._by_call: dict[int, Experience] = {}

    def record(self, made: Iterable[tuple[int, Experience]]) -> None:
        """Records answers by their calls' numbers."""
        self._by_call.update(made)

    def collect(self, *, clear: bool) -> list[Experience]:
        """Returns all recorded answers, and with `clear` removes them."""
        found = [self._by_call[number] for number in sorted(self._by_call)]
        if clear:
            self._by_call.clear()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperienceBuilder:
    """Makes experiences of answers by one version of the weights."""

    tokenizer: ChatTokenizer
    limits: ModelLimits
    version: int
    incarnation: int
    auxiliary_name: str
    """Name of the auxiliary model that answers; empty for the policy."""

    def from_generation(
        self, prompt: Prompt, generation: Generation, sampling: SamplingParams
    ) -> Experience:
        """Returns an answer; its action mask is all false without log-probabilities."""
        num_tokens = len(generation.token_ids)
        has_logprobs = len(generation.logprobs) == num_tokens
        logprobs = generation.logprobs if has_logprobs else [0.0] * num_tokens
        response = self.tokenizer.decode(generation.token_ids)
        body = TokenSequence(
            tokens=np.array(prompt.token_ids + generation.token_ids, dtype=np.int32),
            prompt_length=len(prompt.token_ids),
            action_mask=np.full(num_tokens, has_logprobs, dtype=np.bool_),
            rollout_logprobs=np.array(logprobs, dtype=np.float32),
            prompt_text=prompt.text,
            response_text=truncate_at_stop(response, sampling.stop),
        )
        experience = self._wrap(body, generation.finish_reason, sampling)
        experience.arrays |= likeliest_arrays(generation, sampling.logprobs)
        if generation.routed_experts is not None:
            routes = Array(generation.routed_experts, Alignment.RESPONSE)
            experience.arrays[ROUTED_EXPERTS] = routes
        return experience

    def from_long_prompt(self, prompt: Prompt, sampling: SamplingParams) -> Experience:
        """Returns a placeholder that keeps the group complete; its action mask is all false."""
        limit = self.limits.max_prompt_tokens
        if not self.limits.truncate_prompts:
            raise UserError(
                f"a prompt has {len(prompt.token_ids)} tokens, model.max_prompt_tokens is {limit}; "
                "raise it, or set model.enable_prompt_truncation"
            )
        body = TokenSequence(
            tokens=np.array(prompt.token_ids[: limit + 1], dtype=np.int32),
            prompt_length=limit,
            action_mask=np.zeros(1, dtype=np.bool_),
            rollout_logprobs=np.zeros(1, dtype=np.float32),
            prompt_text=prompt.text,
        )
        experience = self._wrap(body, FinishReason.PROMPT_TRUNCATED, sampling)
        experience.reward = 0.0
        return experience

    def _wrap(
        self, body: TokenSequence, finish_reason: FinishReason, sampling: SamplingParams
    ) -> Experience:
        span = VersionSpan(
            start=0,
            end=body.response_length,
            version=self.version,
            incarnation=self.incarnation,
        )
        return Experience(
            body=body,
            finish_reason=finish_reason,
            version_spans=(span,),
            sampling=sampling,
            chat_template_sha256=self.tokenizer.template_sha256,
            info={AUXILIARY_MODEL: self.auxiliary_name} if self.auxiliary_name else {},
        )
