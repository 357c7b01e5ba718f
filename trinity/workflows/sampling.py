"""How a call of the model is sampled, and what of it an experience tells."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np

from trinity.errors import UserError
from trinity.types import Alignment, Array, SamplingParams
from trinity.workflows.generation import Generation

LIKELIEST_TOKENS = "likeliest_tokens"
LIKELIEST_LOGPROBS = "likeliest_logprobs"
"""Arrays of an experience, position by position, where `logprobs` asked for them."""


class Sampling(TypedDict, total=False):
    """What a call may set otherwise than its taskset."""

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


def applied(usual: SamplingParams, overrides: Sampling) -> SamplingParams:
    """What a call sets, over what is usual.

    Raises: UserError for a text to stop at that is none, and a schema that is no text.
    """
    stop = overrides.get("stop", usual.stop)
    if isinstance(stop, str) or not all(stop):
        raise UserError(f"`stop` takes a list of texts that are not empty, not {stop!r}")
    if not isinstance(overrides.get("json_schema", ""), str):
        raise UserError("`json_schema` takes the text of a JSON Schema: give `json.dumps` of it")
    changes: dict[str, Any] = {**overrides, "stop": tuple(stop)}
    return replace(usual, **changes)


def until_stop(text: str, stop: Sequence[str]) -> str:
    """A response ends as soon as it has one of the texts, so only its last token can hold more."""
    ends = [text.find(one) for one in stop]
    return text[: min((end for end in ends if end >= 0), default=len(text))]


def likeliest_arrays(generation: Generation, num_likeliest: int) -> dict[str, Array]:
    """The likeliest tokens and their log-probabilities; none where none were asked for."""
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
