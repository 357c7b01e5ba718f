"""Chat completions: what a request asks for, and what its answer looks like."""

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.explorer.openai_api.messages import read_messages, read_tools
from services.explorer.openai_api.parsers import ResponseParsers
from services.explorer.openai_api.refusals import InvalidRequest
from trinity.types import Experience, FinishReason, JsonObject
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
UNKNOWN_HERE = ("functions", "response_format", "logit_bias", "audio")
"""What would change the answer and is not understood; all other keys are passed over."""
FINISH_REASONS = {FinishReason.STOP: "stop"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A question, as far as it is looked at."""

    messages: list[Message]
    tools: tuple[JsonObject, ...]
    """None of them where the model is not to call any."""
    num_choices: int
    sampling: Sampling
    wants_logprobs: bool
    wants_token_ids: bool
    streams: bool
    includes_usage: bool
    model: str
    """The name that was asked for; empty where none was."""
    seed: int | None


def read_request(body: object) -> ChatRequest:
    """Raises: InvalidRequest naming the key."""
    if not isinstance(body, dict):
        raise InvalidRequest("the body is not a JSON object")
    for key in UNKNOWN_HERE:
        if body.get(key) and body[key] != {"type": "text"}:
            raise InvalidRequest(f"`{key}` is not understood here: leave it out", param=key)
    wants_logprobs = bool(body.get("logprobs"))
    return ChatRequest(
        messages=read_messages(body.get("messages")),
        tools=_offered_tools(body),
        num_choices=_whole(body, "n", 1, most=MAX_CHOICES),
        sampling=_sampling(body, wants_logprobs=wants_logprobs),
        wants_logprobs=wants_logprobs,
        wants_token_ids=bool(body.get("return_token_ids")),
        streams=bool(body.get("stream")),
        includes_usage=_includes_usage(body.get("stream_options")),
        model=_name(body.get("model")),
        seed=_seed(body),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """Writes answers of one model."""

    model_path: str
    tokenizer: ChatTokenizer
    parsers: ResponseParsers | None = None

    def check(self, request: ChatRequest) -> None:
        """Raises: InvalidRequest for tools whose calls would not be found."""
        if request.tools and (self.parsers is None or self.parsers.tools is None):
            raise InvalidRequest(
                "`tools` are not looked for in responses: set "
                "`explorer.rollout_model.enable_auto_tool_choice: true` and `tool_call_parser`, "
                'or ask with `tool_choice: "none"`',
                param="tools",
            )

    def takes_apart(self, request: ChatRequest) -> bool:
        """Whether a response may be anything but its text."""
        return self.parsers is not None and self.parsers.takes_apart(bool(request.tools))

    def answer(self, request: ChatRequest, answers: Sequence[Experience]) -> JsonObject:
        """The answers as choices, with the tokens where they were asked for."""
        answer: JsonObject = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model_path,
            "system_fingerprint": _fingerprint(answers[0]),
            "choices": [self._choice(i, one, request) for i, one in enumerate(answers)],
            "usage": usage_of(answers),
        }
        if request.wants_token_ids:
            sequence = answers[0].sequence
            answer["prompt_token_ids"] = sequence.tokens[: sequence.prompt_length].tolist()
        return answer

    def message(self, answer: Experience, request: ChatRequest) -> tuple[JsonObject, str]:
        """What is said, and why it ends there."""
        reason = FINISH_REASONS.get(answer.finish_reason, "length")
        if self.parsers is None or not self.takes_apart(request):
            return {"role": "assistant", "content": answer.response_text}, reason
        said = self.parsers.read(answer, request.tools)
        message: JsonObject = {"role": "assistant", "content": said.content}
        if said.reasoning is not None:
            # vLLM's server has called it by both names.
            message |= {"reasoning": said.reasoning, "reasoning_content": said.reasoning}
        if said.tool_calls:
            message["tool_calls"] = [*said.tool_calls]
            reason = "tool_calls"
        return message, reason

    def _choice(self, index: int, answer: Experience, request: ChatRequest) -> JsonObject:
        message, reason = self.message(answer, request)
        choice: JsonObject = {
            "index": index,
            "message": message,
            "finish_reason": reason,
            "logprobs": None,
        }
        if request.wants_logprobs:
            choice["logprobs"] = {"content": [*self._logprobs(answer)]}
        if request.wants_token_ids:
            choice["token_ids"] = [*_response_tokens(answer)]
        return choice

    def _logprobs(self, answer: Experience) -> list[JsonObject]:
        likeliest: list[list[tuple[int, float]]] = []
        if LIKELIEST_TOKENS in answer.arrays:
            ids = answer.arrays[LIKELIEST_TOKENS].data.tolist()
            values = answer.arrays[LIKELIEST_LOGPROBS].data.tolist()
            likeliest = [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
        tokens, logprobs = _response_tokens(answer), answer.sequence.rollout_logprobs.tolist()
        return logprobs_of(tokens, logprobs, likeliest, self.tokenizer)


def logprobs_of(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    likeliest: Sequence[Sequence[tuple[int, float]]],
    tokenizer: ChatTokenizer,
) -> list[JsonObject]:
    """Those that the tokens were drawn by: after penalties, temperature and truncation."""
    others = likeliest or [()] * len(tokens)
    return [
        {
            **_token(token, logprob, tokenizer),
            "top_logprobs": [_token(*one, tokenizer) for one in beside],
        }
        for token, logprob, beside in zip(tokens, logprobs, others, strict=True)
    ]


def usage_of(answers: Sequence[Experience]) -> JsonObject:
    """Tokens of the prompt, which is counted once, and of all answers."""
    prompt_length = answers[0].sequence.prompt_length
    num_tokens = sum(one.sequence.response_length for one in answers)
    return {
        "prompt_tokens": prompt_length,
        "completion_tokens": num_tokens,
        "total_tokens": prompt_length + num_tokens,
    }


def fingerprint_of(version: int, incarnation: int) -> str:
    """Which weights an answer was made with."""
    return f"v{version}-{incarnation}"


def _fingerprint(answer: Experience) -> str:
    span = answer.version_spans[0]
    return fingerprint_of(span.version, span.incarnation)


def _offered_tools(body: Mapping[str, Any]) -> tuple[JsonObject, ...]:
    tools, choice = read_tools(body.get("tools")), body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise InvalidRequest(
            "`tool_choice` is `auto` or `none` here: a call cannot be forced", param="tool_choice"
        )
    return () if choice == "none" else tools


def _includes_usage(options: object) -> bool:
    if options is not None and not isinstance(options, dict):
        raise InvalidRequest("`stream_options` is not an object", param="stream_options")
    return bool(options and options.get("include_usage"))


def _seed(body: Mapping[str, Any]) -> int | None:
    if body.get("seed") is None:
        return None
    return _whole(body, "seed", 0, least=-(1 << 63), most=(1 << 63) - 1)


def _name(given: object) -> str:
    if given is not None and not isinstance(given, str):
        raise InvalidRequest("`model` is not a text", param="model")
    return given or ""


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
        raise InvalidRequest(
            "`stop` is neither a text nor a list of texts that are not empty", param="stop"
        )
    return texts


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"`{key}` is not a number", param=key)
    return float(value)


def _whole(
    body: Mapping[str, Any], key: str, usual: int, *, least: int = 1, most: int = 1 << 31
) -> int:
    value = body.get(key)
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(f"`{key}` is not a whole number from {least} to {most}", param=key)
    return value


def _response_tokens(answer: Experience) -> list[int]:
    sequence = answer.sequence
    tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
    return tokens


def _token(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    text = tokenizer.decode([token])
    return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode())}
