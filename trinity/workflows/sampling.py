"""Sampling parameters of model calls, and the arrays that an experience keeps of them."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from trinity.errors import UserError
from trinity.types import Alignment, Array, SamplingParams
from trinity.workflows.generation import Generation

logger = logging.getLogger(__name__)

LIKELIEST_TOKENS = "likeliest_tokens"
LIKELIEST_LOGPROBS = "likeliest_logprobs"
"""Arrays of an experience with one row per position, if `logprobs` requested them."""


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

    Raises: UserError for an empty stop text, or a schema that is not a text.
    """
    stop = overrides.get("stop", defaults.stop)
    if isinstance(stop, str) or not all(stop):
        raise UserError(f"`stop` takes a list of texts that are not empty, not {stop!r}")
    if not isinstance(overrides.get("json_schema", ""), str):
        raise UserError("`json_schema` takes the text of a JSON Schema: give `json.dumps` of it")
    changes: dict[str, Any] = {**overrides, "stop": tuple(stop)}
    for of_lengths in ("min_tokens", "max_prompt_tokens"):
        changes.pop(of_lengths, None)
    return replace(defaults, **changes)


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
        top_p=min(sampling.top_p, 1.0),
    )


NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Parameters that the trainer's log-probabilities leave out, with values that do nothing."""


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
        for name in NEUTRAL.keys() & given.keys() - self._told:
            if given[name] == NEUTRAL[name] or (name == "top_k" and given[name] == 0):
                continue
            self._told.add(name)
            logger.warning(
                "a call of the model samples with `%s: %s`, and its answers are trained on: ratios "
                "to the trainer's own log-probabilities are off; %s leaves them right",
                name,
                given[name],
                NEUTRAL[name],
            )


def truncate_at_stop(text: str, stop: Sequence[str]) -> str:
    """Truncates a response at the first stop text, beyond which only its last token can reach."""
    ends = [text.find(stop_text) for stop_text in stop]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def likeliest_arrays(generation: Generation, num_likeliest: int) -> dict[str, Array]:
    """Returns the likeliest tokens and log-probabilities as arrays; none if not requested."""
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
