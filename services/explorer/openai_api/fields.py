"""Reads the keys that requests of every kind may have."""

import json
import math
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.generation import ANY_OBJECT

MAX_CHOICES = 128
MAX_LOGPROBS = 20
MAX_STOP_TEXTS = 64
MAX_STOP_CHARACTERS = 4096
NUMBER_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.0, math.inf),
}
ABOVE_LEAST = ("top_p", "repetition_penalty")
"""Numbers that must be above their lower bound."""
GUIDED_DECODING_KEYS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
)
"""vLLM's own keys for structured output."""
Body = Mapping[str, Any]
ANSWER_KEYS: Mapping[str, tuple[object, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "chat_template": ("",),
    "documents": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "include_reasoning": (True,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprob_token_ids": ([],),
    "modalities": (["text"],),
    "repetition_detection": (),
    "return_assistant_tokens_mask": (False,),
    "return_prompt_text": (False,),
    "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
"""Keys of OpenAI's and of vLLM's server that change the answer and are not supported, and the
values with which they have no effect."""
READ_KEYS = frozenset(
    {
        *NUMBER_BOUNDS,
        "chat_template_kwargs",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_tokens",
        "parallel_tool_calls",
        "prompt_logprobs",
        "reasoning_effort",
        "response_format",
        "return_token_ids",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "tool_choice",
        "tools",
        "top_k",
        "top_logprobs",
    }
)
"""Keys that act; one that is spelt almost as they are is refused, as OpenAI's server does."""
_OTHER_KEYS = frozenset(
    {*ANSWER_KEYS, *GUIDED_DECODING_KEYS, "model", "messages", "prompt", "n", "echo", "best_of"}
)
_SIMILARITY = 0.82
_MAX_KEY_LENGTH = 40


def read_body(body: object, unsupported: Collection[str]) -> Body:
    """Returns the body; raises InvalidApiRequest for keys that are not supported."""
    if not isinstance(body, dict):
        raise InvalidApiRequest("the body is not a JSON object")
    for key in (*unsupported, *GUIDED_DECODING_KEYS):
        if body.get(key):
            raise InvalidApiRequest(f"`{key}` is not understood here: leave it out", param=key)
    for key, harmless in ANSWER_KEYS.items():
        if body.get(key) is not None and body[key] not in harmless:
            raise InvalidApiRequest(
                f"`{key}` would change the answer and is not supported here: leave it out",
                param=key,
            )
    for key in body.keys() - READ_KEYS - _OTHER_KEYS:
        _refuse_misspelt(key)
    return body


def _refuse_misspelt(key: str) -> None:
    """Raises InvalidApiRequest for a misspelt key; other unknown keys are ignored."""
    if key == "extra_body":
        raise InvalidApiRequest(
            "`extra_body` is an argument of OpenAI's client, which puts its keys beside the other "
            "ones: put them there",
            param=key,
        )
    meant = get_close_matches(key[:_MAX_KEY_LENGTH], READ_KEYS, n=1, cutoff=_SIMILARITY)
    if meant:
        raise InvalidApiRequest(f"`{key}` is not read: did you mean `{meant[0]}`?", param=key)


def read_flag(body: Body, key: str) -> bool:
    """Returns whether a key is true, or 1 as vLLM takes it; a text such as "false" is neither."""
    value = body.get(key)
    if value not in (None, False, True):
        raise InvalidApiRequest(f"`{key}` is neither true nor false", param=key)
    return bool(value)


def check_continuation(body: Body, *, continues: bool) -> None:
    """Checks vLLM's keys that say where an answer begins against where it begins here.

    A last message of the assistant is continued (`continues`), and the answer is the new text.

    Raises: InvalidApiRequest for a key that asks for anything else.
    """
    last = "the last message is the assistant's, and is continued"
    if not continues:
        last = "the last message is not the assistant's, so the answer is a separate message"
    for key, begins_message in (("continue_final_message", False), ("add_generation_prompt", True)):
        if body.get(key) is not None and read_flag(body, key) is (continues is begins_message):
            raise InvalidApiRequest(f"{last}: leave out `{key}`, or end otherwise", param=key)
    if read_flag(body, "echo") and continues:
        raise InvalidApiRequest(f"{last}, without repeating it: leave out `echo`", param="echo")
    if read_flag(body, "add_special_tokens"):
        raise InvalidApiRequest(
            "the chat template writes all special tokens: leave out `add_special_tokens`",
            param="add_special_tokens",
        )


def read_template_variables(body: Body) -> Mapping[str, object]:
    """Returns the variables of the chat template that a request names."""
    named = body.get("chat_template_kwargs")
    if named is not None and not isinstance(named, dict):
        raise InvalidApiRequest(
            "`chat_template_kwargs` is not an object", param="chat_template_kwargs"
        )
    effort = body.get("reasoning_effort")
    return {**(named or {}), **({} if effort is None else {"reasoning_effort": effort})}


def read_sampling(body: Body, *, least_tokens: int = 1) -> SamplingOverrides:
    """Reads sampling parameters; the taskset sets those that are left out."""
    found = SamplingOverrides()
    for key in NUMBER_BOUNDS:
        if (value := body.get(key)) is not None:
            found[key] = _bounded(key, value)  # type: ignore[literal-required]
    if body.get("top_k") is not None:
        found["top_k"] = read_int(body, "top_k", -1, least=-1)
    if body.get("min_tokens") is not None:
        found["min_tokens"] = read_int(body, "min_tokens", 0, least=0)
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key) is not None:
            found["max_tokens"] = read_int(body, key, 1, least=least_tokens)
    if body.get("stop") is not None:
        found["stop"] = _stop(body["stop"])
    return found


def read_schema(body: Body) -> str:
    """Returns the JSON Schema of `response_format`; empty for any text."""
    value = body.get("response_format")
    if value is None:
        return ""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return ""
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise InvalidApiRequest(
            "`response_format.type` is `text`, `json_object` or `json_schema` here",
            param="response_format",
        )
    return _json_schema(value.get("json_schema"))


def _json_schema(described: object) -> str:
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidApiRequest(
            "`response_format.json_schema.schema` is not an object", param="response_format"
        )
    return json.dumps(schema)


def includes_usage(body: Body) -> bool:
    """Returns true if a stream is to end with its token usage."""
    options = body.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidApiRequest("`stream_options` is not an object", param="stream_options")
    return bool(options and options.get("include_usage"))


def read_seed(body: Body) -> int | None:
    """Returns the seed, which must fit 64 bits, or None."""
    if body.get("seed") is None:
        return None
    return read_int(body, "seed", 0, least=-(1 << 63), most=(1 << 63) - 1)


def read_model(body: Body) -> str:
    """Returns the requested model name, or an empty text."""
    value = body.get("model")
    if value is not None and not isinstance(value, str):
        raise InvalidApiRequest("`model` is not a text", param="model")
    return value or ""


def read_prompt_logprobs(body: Body) -> int | None:
    """Returns the number of likeliest tokens to report at prompt positions, or None."""
    if body.get("prompt_logprobs") is None:
        return None
    if body.get("stream"):
        raise InvalidApiRequest(
            "`prompt_logprobs` cannot be streamed: leave out `stream`", param="prompt_logprobs"
        )
    return read_int(body, "prompt_logprobs", 0, least=0, most=MAX_LOGPROBS)


def read_int(body: Body, key: str, default: int, *, least: int = 1, most: int = 1 << 31) -> int:
    """Returns a whole number from the body, or `default` if the key is absent."""
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidApiRequest(f"`{key}` is not a whole number from {least} to {most}", param=key)
    return value


def _stop(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise InvalidApiRequest(
            "`stop` is neither a text nor a list of texts that are not empty", param="stop"
        )
    # Each is looked for in every answer after every token.
    if len(texts) > MAX_STOP_TEXTS or sum(map(len, texts)) > MAX_STOP_CHARACTERS:
        raise InvalidApiRequest(
            f"`stop` has more than {MAX_STOP_TEXTS} texts or {MAX_STOP_CHARACTERS} characters",
            param="stop",
        )
    return texts


def _bounded(key: str, value: object) -> float:
    """Returns a number that engines take; raises InvalidApiRequest with the key and its bounds."""
    number = _number(key, value)
    least, most = NUMBER_BOUNDS[key]
    if not least <= number <= most or (key in ABOVE_LEAST and number == least):
        above = "above" if key in ABOVE_LEAST else "at least"
        limit = "" if most == math.inf else f" and at most {most:g}"
        raise InvalidApiRequest(f"`{key}` is a number {above} {least:g}{limit}", param=key)
    return number


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidApiRequest(f"`{key}` is not a number", param=key)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidApiRequest(f"`{key}` is not a finite number", param=key)
    return number
