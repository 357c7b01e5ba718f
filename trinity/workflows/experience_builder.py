"""Makes the experiences that answers of the model are recorded as."""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, TypedDict, TypeGuard

import numpy as np

from trinity.data.codec_checks import span_numbers
from trinity.errors import UserError
from trinity.runtime.origin import answered_turn
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

logger = logging.getLogger(__name__)

LIKELIEST_TOKENS = "likeliest_tokens"
LIKELIEST_LOGPROBS = "likeliest_logprobs"
"""Arrays of an experience with one row per position, if `logprobs` requested them."""
NEUTRAL: Mapping[str, object] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "json_schema": "",
}
"""Parameters that the trainer's log-probabilities leave out, with their neutral values."""
AUXILIARY_MODEL = "auxiliary_model"
"""Key of an experience's `info` with the name of the auxiliary model that made it."""


class SamplingOverrides(TypedDict, total=False):
    """Parameters that a call may override."""

    temperature: float
    top_p: float
    top_k: int
    max_tokens: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    stop: Sequence[str]
    logprobs: int
    json_schema: str
    min_tokens: int
    """In the place of `model.min_response_tokens`."""
    max_prompt_tokens: int
    """In the place of `model.max_prompt_tokens`."""


def apply_overrides(defaults: SamplingParams, overrides: SamplingOverrides) -> SamplingParams:
    """Returns `defaults` with the overrides of a call.

    Raises: UserError for an empty stop text, a schema that is not a text, or a temperature that is
        no number from 0 on.
    """
    value: object = overrides.get("temperature", 0.0)
    if not _is_temperature(value):
        raise UserError(
            f"`temperature` takes a number from 0 on, not {value!r}: leave it out for that of the "
            "taskset"
        )
    stop = overrides.get("stop", defaults.stop)
    if isinstance(stop, str) or not all(stop):
        raise UserError(f"`stop` takes a list of texts that are not empty, not {stop!r}")
    if not isinstance(overrides.get("json_schema", ""), str):
        raise UserError("`json_schema` takes the text of a JSON Schema: give `json.dumps` of it")
    changes: dict[str, Any] = {**overrides, "stop": tuple(stop)}
    if "temperature" in changes:
        changes["temperature"] = float(value)  # NumPy's numbers too
    for of_lengths in ("min_tokens", "max_prompt_tokens"):
        changes.pop(of_lengths, None)
    return replace(defaults, **changes)


def _is_temperature(value: object) -> TypeGuard[Real]:
    return isinstance(value, Real) and 0 <= float(value) < math.inf


def distribution_of(sampling: SamplingParams | None) -> SamplingParams | None:
    """Returns the part of the parameters that decides how likely each token is.

    Two answers with equal values were drawn alike, whatever their seeds, lengths and stop texts.
    """
    if sampling is None:
        return None
    return replace(
        sampling,
        max_tokens=0,
        seed=0,
        stop=(),
        logprobs=0,
        top_k=sampling.top_k if sampling.top_k > 0 else -1,
    )


class RatioWarnings:
    """Warns once of each parameter of a call that moves the ratio of training to rollout.

    warnings = RatioWarnings()   # one for all runs that are trained on
    warnings.check({"top_k": 20})
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, overrides: SamplingOverrides) -> None:
        """Logs a warning for each parameter that is new and does something."""
        given = dict(overrides)
        if given.get("temperature") == 0 and "temperature" not in self._told:
            self._told.add("temperature")
            logger.warning(
                "a call of the model samples with `temperature: 0`, and its answers are trained "
                "on: they were not drawn from any distribution, so ratios to the trainer's own "
                "log-probabilities, at temperature 1, are off"
            )
        for name in NEUTRAL.keys() & given.keys() - self._told:
            if given[name] == NEUTRAL[name] or (name == "top_k" and given[name] == 0):
                continue
            self._told.add(name)
            logger.warning(
                "a call of the model samples with `%s: %.60s`, and its answers are trained on: "
                "ratios to the trainer's own log-probabilities are off; %s leaves them right",
                name,
                given[name],
                NEUTRAL[name] if NEUTRAL[name] != "" else "no such argument",
            )


def truncate_at_stop(text: str, stop: Sequence[str]) -> str:
    """Truncates a response at the first stop text, beyond which only its last token can reach."""
    ends = [text.find(stop_text) for stop_text in stop]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def likeliest_arrays(generation: Generation, num_likeliest: int) -> dict[str, Array]:
    """Returns the likeliest tokens and log-probabilities as arrays; empty if not requested."""
    if not num_likeliest:
        return {}
    tokens = [[token for token, _ in position] for position in generation.likeliest]
    logprobs = [[logprob for _, logprob in position] for position in generation.likeliest]
    shape = (len(generation.token_ids), num_likeliest)
    return {
        LIKELIEST_TOKENS: Array(np.array(tokens, np.int32).reshape(shape), Alignment.RESPONSE),
        LIKELIEST_LOGPROBS: Array(
            np.array(logprobs, np.float32).reshape(shape), Alignment.RESPONSE
        ),
    }


class CallHistory:
    """Keeps experiences in the order of the calls, not of the answers."""

    def __init__(self) -> None:
        self._by_call: dict[int, Experience] = {}
        self._taken: set[int] = set()

    def record(self, made: Iterable[tuple[int, Experience]]) -> None:
        """Records answers by their calls' numbers."""
        self._by_call.update(made)

    def collect(self, *, clear: bool) -> list[Experience]:
        """Returns the recorded answers, and with `clear` removes them."""
        left = sorted(self._by_call.keys() - self._taken)
        if clear:
            self._taken.update(left)
        return [self._by_call[number] for number in left]

    def all(self) -> list[Experience]:
        """Returns all answers, also those that were removed."""
        return [self._by_call[number] for number in sorted(self._by_call)]


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
            role_spans=prompt.role_spans,
        )
        experience = self._wrap(body, generation.finish_reason, sampling)
        experience.blobs = prompt.image_refs
        experience.version_spans = generation.version_spans or experience.version_spans
        spans = span_numbers(experience.version_spans)
        turn = answered_turn(body.tokens, body.prompt_length, body.rollout_logprobs, spans)
        experience.turns = (turn,)
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
            role_spans=prompt.role_spans,
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
