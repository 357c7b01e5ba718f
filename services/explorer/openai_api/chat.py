"""Chat completions: what a request asks for, and what its answer looks like."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import Experience, FinishReason, JsonObject, JsonValue
from trinity.workflows.generation import ChatTokenizer
from trinity.workflows.messages import Message
from trinity.workflows.model import LIKELIEST_LOGPROBS, LIKELIEST_TOKENS, Sampling

MAX_CHOICES = 128
MAX_LOGPROBS = 20
NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
UNKNOWN_HERE = ("stream", "tools", "functions", "response_format", "logit_bias", "audio")
"""What would change the answer and is not understood; all other keys are passed over."""
FINISH_REASONS = {FinishReason.STOP: "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A question, as far as it is looked at."""

    messages: list[Message]
    num_choices: int
    sampling: Sampling
    wants_logprobs: bool
    wants_token_ids: bool
    model: str
    """The name that was asked for; empty where none was."""
    seed: int | None


def read_request(body: object) -> ChatRequest:
    """Raises: InvalidRequest naming the key."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    for key in UNKNOWN_HERE:
        if body.get(key) and body[key] != {"type": "text"}:
            raise InvalidRequest(f"`{key}` is not understood here: leave it out")
    wants_logprobs = bool(body.get("logprobs"))
    return ChatRequest(
        messages=_messages(body.get("messages")),
        num_choices=_whole(body, "n", 1, most=MAX_CHOICES),
        sampling=_sampling(body, wants_logprobs=wants_logprobs),
        wants_logprobs=wants_logprobs,
        wants_token_ids=bool(body.get("return_token_ids")),
        model=_name(body.get("model")),
        seed=_whole(body, "seed", 0, least=-(1 << 63), most=(1 << 63) - 1)
        if body.get("seed") is not None
        else None,
    )


def write_answer(
    request: ChatRequest,
    answers: Sequence[Experience],
    *,
    model_path: str,
    tokenizer: ChatTokenizer,
) -> JsonObject:
    """The answers as choices, with the tokens where they were asked for."""
    prompt_length = answers[0].sequence.prompt_length
    num_tokens = sum(one.sequence.response_length for one in answers)
    answer: JsonObject = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model_path,
        "system_fingerprint": fingerprint(answers[0]),
        "choices": [_choice(i, one, request, tokenizer) for i, one in enumerate(answers)],
        "usage": {
            "prompt_tokens": prompt_length,
            "completion_tokens": num_tokens,
            "total_tokens": prompt_length + num_tokens,
        },
    }
    if request.wants_token_ids:
        answer["prompt_token_ids"] = answers[0].sequence.tokens[:prompt_length].tolist()
    return answer


def fingerprint(answer: Experience) -> str:
    """Which weights it was made with."""
    span = answer.version_spans[0]
    return f"v{span.version}-{span.incarnation}"


def _name(given: object) -> str:
    if given is not None and not isinstance(given, str):
        raise InvalidRequest("`model` is not a text", param="model")
    return given or ""


def _messages(given: object) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise InvalidRequest("`messages` is not a list with a message in it")
    return [_message(one, f"messages[{i}]") for i, one in enumerate(given)]


def _message(given: object, where: str) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise InvalidRequest(f"`{where}` has no role")
    content = given.get("content")
    if isinstance(content, list):
        content = "".join(_text_of(part, where) for part in content)
    if not isinstance(content, str):
        raise InvalidRequest(f"`{where}.content` is not a text")
    return Message(role=given["role"], content=content)


def _text_of(part: object, where: str) -> str:
    if not isinstance(part, dict) or not isinstance(part.get("text"), str):
        raise InvalidRequest(f"`{where}.content` has a part that is not a text")
    return str(part["text"])


def _sampling(body: Mapping[str, Any], *, wants_logprobs: bool) -> Sampling:
    found = Sampling()
    for key in NUMBERS:
        if (value := body.get(key)) is not None:
            found[key] = _number(key, value)  # type: ignore[literal-required]
    if body.get("top_k") is not None:
        found["top_k"] = _whole(body, "top_k", -1, least=-1)
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key) is not None:
            found["max_tokens"] = _whole(body, key, 1)
    if body.get("stop") is not None:
        found["stop"] = _stop(body["stop"])
    if wants_logprobs:
        found["logprobs"] = _whole(body, "top_logprobs", 0, least=0, most=MAX_LOGPROBS)
    return found


def _stop(given: object) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(one, str) and one for one in texts):
        raise InvalidRequest("`stop` is neither a text nor a list of texts that are not empty")
    return texts


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"`{key}` is not a number")
    return float(value)


def _whole(
    body: Mapping[str, Any], key: str, usual: int, *, least: int = 1, most: int = 1 << 31
) -> int:
    value = body.get(key)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"`{key}` is not a whole number from {least} to {most}")
    return value


def _choice(
    index: int, answer: Experience, request: ChatRequest, tokenizer: ChatTokenizer
) -> JsonObject:
    choice: JsonObject = {
        "index": index,
        "message": {"role": "assistant", "content": answer.response_text},
        "finish_reason": FINISH_REASONS.get(answer.finish_reason, "length"),
        "logprobs": None,
    }
    if request.wants_logprobs:
        choice["logprobs"] = {"content": _logprobs(answer, tokenizer)}
    if request.wants_token_ids:
        choice["token_ids"] = [*_response_tokens(answer)]
    return choice


def _response_tokens(answer: Experience) -> list[int]:
    sequence = answer.sequence
    tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
    return tokens


def _logprobs(answer: Experience, tokenizer: ChatTokenizer) -> list[JsonValue]:
    """Those that the tokens were drawn by: after penalties, temperature and truncation."""
    tokens = _response_tokens(answer)
    likeliest: list[list[tuple[int, float]]] = [[] for _ in tokens]
    if LIKELIEST_TOKENS in answer.arrays:
        ids = answer.arrays[LIKELIEST_TOKENS].data.tolist()
        values = answer.arrays[LIKELIEST_LOGPROBS].data.tolist()
        likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
    sampled = zip(tokens, answer.sequence.rollout_logprobs.tolist(), likeliest, strict=True)
    return [
        {
            **_token(token, logprob, tokenizer),
            "top_logprobs": [_token(*one, tokenizer) for one in others],
        }
        for token, logprob, others in sampled
    ]


def _token(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    text = tokenizer.decode([token])
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}
