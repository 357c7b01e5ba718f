"""Sampling parameters of model calls, and the arrays that an experience keeps of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from trinity.errors import UserError
from trinity.types import Alignment, Array, SamplingParams
from trinity.workflows.generation import Generation

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
    return replace(defaults, **changes)


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
