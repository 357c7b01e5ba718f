"""Chat requests and responses in the format of OpenAI's API."""

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast
from weakref import WeakKeyDictionary

from services.explorer.openai_api import fields
from services.explorer.openai_api.errors import MAX_SHOWN_CHARACTERS, InvalidApiRequest
from services.explorer.openai_api.fields import MAX_CHOICES, MAX_LOGPROBS
from services.explorer.openai_api.images import said_of
from services.explorer.openai_api.response import (
    answer_fingerprint,
    finish_reason,
    json_logprob,
    prompt_logprobs_of,
    prompt_tokens,
    response_tokens,
    top_logprobs_of,
    usage_of,
)
from services.explorer.openai_api.response_input import Chats, KeptChats
from services.explorer.openai_api.tools import ForcedCalls, ResponseParsers, read_forced
from trinity.config.plan.model import TAKEN_TEMPLATE_KWARGS
from trinity.runtime.json_values import parse_untrusted
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.generation import ChatTokenizer, ReadsTemplate, Scores
from trinity.workflows.messages import Message

logger = logging.getLogger(__name__)
MAX_TOLD_VARIABLES = 32
UNSUPPORTED_KEYS = ("functions", "logit_bias", "audio")
"""Keys of chats, besides those in `fields`, that would change the answer but are not supported."""


def read_messages(value: object) -> list[Message]:
    """Reads the messages; raises InvalidApiRequest naming the message."""
    if not isinstance(value, list) or not value:
        raise InvalidApiRequest("`messages` is not a list with a message in it", param="messages")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(value)]


def read_tools(value: object) -> tuple[JsonObject, ...]:
    """Reads the tools; raises InvalidApiRequest naming the tool."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidApiRequest("`tools` is not a list", param="tools")
    for i, tool in enumerate(value):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidApiRequest(
                f"`tools[{i}]` is not a function with a name", param=f"tools[{i}].function"
            )
    return tuple(value)


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise InvalidApiRequest(f"`{where}` has no role", param=where)
    calls = value.get("tool_calls")
    content = value.get("content")
    if content is None and calls:
        content = ""
    if not isinstance(content, str | list):
        raise InvalidApiRequest(f"`{where}.content` is not a text", param=f"{where}.content")
    said = cast(str, said_of(content, f"{where}.content"))  # parts if there are images
    message = Message(role=value["role"], content=said)
    if calls:
        message["tool_calls"] = _calls(calls, f"{where}.tool_calls")
    if isinstance(value.get("tool_call_id"), str):
        message["tool_call_id"] = value["tool_call_id"]
    if isinstance(value.get("name"), str):
        message["name"] = value["name"]
    thoughts = value.get("reasoning_content") or value.get("reasoning")
    if isinstance(thoughts, str) and thoughts:
        message["reasoning_content"] = thoughts
    return message


def _calls(value: object, where: str) -> list[JsonValue]:
    """Parses arguments into objects, because chat templates write the JSON themselves."""
    if not isinstance(value, list):
        raise InvalidApiRequest(f"`{where}` is not a list", param=where)
    calls: list[JsonValue] = []
    for i, call in enumerate(value):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidApiRequest(f"`{where}[{i}]` is not a function call", param=where)
        arguments = _arguments(function.get("arguments"), f"{where}[{i}].function.arguments")
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return calls


def _arguments(value: object, where: str) -> JsonValue:
    if not isinstance(value, str):
        return value if isinstance(value, dict) else {}
    try:
        found = parse_untrusted(value) if value else {}
    except ValueError as error:
        raise InvalidApiRequest(f"`{where}` is not JSON: {error}", param=where) from error
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """The supported part of a chat request."""

    messages: list[Message]
    tools: tuple[JsonObject, ...]
    """Empty if the model must not call any."""
    forced: ForcedCalls | None
    """Tool calls that the answer must consist of, if the request forces any."""
    calls_one_tool: bool
    """True if an answer is to tell its first call alone."""
    template_variables: Mapping[str, object]
    num_choices: int
    sampling: SamplingOverrides
    wants_logprobs: bool
    prompt_logprobs: int | None
    """Number of likeliest tokens to report at each prompt position; None for no prompt logprobs."""
    wants_token_ids: bool
    streams: bool
    includes_usage: bool
    model: str
    """The requested model name, or an empty text."""
    seed: int | None


def read_request(payload: object) -> ChatRequest:
    """Reads a request; raises InvalidApiRequest naming the key."""
    body = fields.read_body(payload, UNSUPPORTED_KEYS)
    wants_logprobs = fields.read_flag(body, "logprobs")
    sampling = fields.read_sampling(body)
    tools = read_tools(body.get("tools"))
    forced = read_forced(body, tools)
    if schema := fields.read_schema(body):
        sampling["json_schema"] = schema
    if forced is not None:
        sampling["json_schema"] = forced.json_schema
    if wants_logprobs:
        sampling["logprobs"] = fields.read_int(body, "top_logprobs", 0, least=0, most=MAX_LOGPROBS)
    elif body.get("top_logprobs"):
        raise InvalidApiRequest("`top_logprobs` needs `logprobs: true`", param="top_logprobs")
    messages = read_messages(body.get("messages"))
    fields.check_continuation(body, continues=messages[-1]["role"] == "assistant")
    return ChatRequest(
        messages=messages,
        tools=() if body.get("tool_choice") == "none" else tools,
        forced=forced,
        calls_one_tool=body.get("parallel_tool_calls") is False,
        template_variables=fields.read_template_variables(body),
        num_choices=fields.read_int(body, "n", 1, most=MAX_CHOICES),
        sampling=sampling,
        wants_logprobs=wants_logprobs,
        prompt_logprobs=fields.read_prompt_logprobs(body),
        wants_token_ids=fields.read_flag(body, "return_token_ids"),
        streams=fields.read_flag(body, "stream"),
        includes_usage=fields.includes_usage(body),
        model=fields.read_model(body),
        seed=fields.read_seed(body),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseWriter:
    """Writes the answers of one model."""

    model_path: str
    tokenizer: ChatTokenizer
    parsers: ResponseParsers | None = None
    template_kwargs: Mapping[str, JsonValue] = field(default_factory=dict)
    """The variables that the chat template has in all requests."""
    told_variables: set[str] = field(default_factory=set)
    """Variables of requests that the template does not read, each warned of once."""
    kept: Chats = field(default_factory=KeptChats)
    """The chats that later requests may go on."""
    told: WeakKeyDictionary[Experience, tuple[JsonObject, str]] = field(
        default_factory=WeakKeyDictionary
    )
    """The messages that clients got: parsers give calls another id each time."""

    def check_supported(self, request: ChatRequest) -> None:
        """Raises InvalidApiRequest for tools without a parser, or reasoning with a JSON schema."""
        self._check_template(request)
        thinks = self.parsers is not None and self.parsers.reasoning is not None
        if thinks and request.sampling.get("json_schema"):
            key = "response_format" if request.forced is None else "tool_choice"
            raise InvalidApiRequest(
                f"`{key}` leaves no room for reasoning, which "
                "`explorer.rollout_model.reasoning_parser` looks for: leave one of them out",
                param=key,
            )
        if (
            request.forced is None
            and request.tools
            and (self.parsers is None or self.parsers.tools is None)
        ):
            raise InvalidApiRequest(
                "`tools` are not looked for in responses: set "
                "`explorer.rollout_model.enable_auto_tool_choice: true` and `tool_call_parser`, "
                'or ask with `tool_choice: "none"`',
                param="tools",
            )

    def _check_template(self, request: ChatRequest) -> None:
        """Raises InvalidApiRequest for a variable that the template does not have as requested.

        A variable that the template does not read has no effect and is only logged.
        """
        for name, value in request.template_variables.items():
            if isinstance(self.tokenizer, ReadsTemplate) and (
                name not in self.tokenizer.template_variables | TAKEN_TEMPLATE_KWARGS
            ):
                self._tell_unread(name)
            elif name not in self.template_kwargs or self.template_kwargs[name] != value:
                raise InvalidApiRequest(
                    f"the chat template's variable `{name}` is the run's, not a request's: set "
                    f"`model.chat_template_kwargs.{name}`, or leave it out",
                    param=name if name == "reasoning_effort" else "chat_template_kwargs",
                )

    def _tell_unread(self, name: str) -> None:
        """Warns once of a variable; clients choose the names, so of a limited number of them."""
        name = name[:MAX_SHOWN_CHARACTERS]
        if name in self.told_variables or len(self.told_variables) >= MAX_TOLD_VARIABLES:
            return
        self.told_variables.add(name)
        logger.warning(
            "requests set a variable that the chat template does not read, so it changes nothing",
            extra={"variable": name},
        )

    def parses_response(self, request: ChatRequest) -> bool:
        """Returns true if a response may be more than its plain text."""
        if request.forced is not None:
            return True
        return self.parsers is not None and self.parsers.parses_response(bool(request.tools))

    def response_body(
        self,
        request: ChatRequest,
        answers: Sequence[Experience],
        scores: Scores | None = None,
        answer_id: str = "",
    ) -> JsonObject:
        """Returns the answers as choices, with tokens if requested.

        `scores` are the prompt's.
        """
        body: JsonObject = {
            "id": f"chatcmpl-{answer_id or uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model_path,
            "system_fingerprint": answer_fingerprint(answers[0]),
            "choices": [self._choice(i, answer, request) for i, answer in enumerate(answers)],
            "usage": usage_of(answers, len(answers)),
        }
        if request.wants_token_ids:
            body["prompt_token_ids"] = [*prompt_tokens(answers[0])]
        if scores is not None:
            logprobs = prompt_logprobs_of(prompt_tokens(answers[0]), scores, self.tokenizer)
            body["prompt_logprobs"] = [*logprobs]
        return body

    def message(self, answer: Experience, request: ChatRequest) -> tuple[JsonObject, str]:
        """Returns the message and its finish reason: the same each time."""
        if answer not in self.told:
            self.told[answer] = self._parsed(answer, request)
        return self.told[answer]

    def _parsed(self, answer: Experience, request: ChatRequest) -> tuple[JsonObject, str]:
        reason = finish_reason(answer)
        if request.forced is not None:
            return request.forced.message(answer.response_text, reason)
        if self.parsers is None or not self.parses_response(request):
            return {"role": "assistant", "content": answer.response_text}, reason
        parsed = self.parsers.parse_reply(answer, request.tools)
        message: JsonObject = {"role": "assistant", "content": parsed.content}
        if parsed.reasoning is not None:
            # vLLM's server has used both names.
            message |= {"reasoning": parsed.reasoning, "reasoning_content": parsed.reasoning}
        if parsed.tool_calls:
            calls = parsed.tool_calls[:1] if request.calls_one_tool else parsed.tool_calls
            message["tool_calls"] = [*calls]
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
            choice["logprobs"] = {"content": [*self.logprobs(answer)]}
        if request.wants_token_ids:
            choice["token_ids"] = [*response_tokens(answer)]
        return choice

    def logprobs(self, answer: Experience) -> list[JsonObject]:
        """Returns the log-probabilities of all response tokens."""
        logprobs = answer.sequence.rollout_logprobs.tolist()
        return logprobs_of(
            response_tokens(answer), logprobs, top_logprobs_of(answer), self.tokenizer
        )


def logprobs_of(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    likeliest: Sequence[Sequence[tuple[int, float]]],
    tokenizer: ChatTokenizer,
) -> list[JsonObject]:
    """Returns the sampling log-probabilities: after penalties, temperature and truncation."""
    others = likeliest or [()] * len(tokens)
    return [
        {
            **_token(token, logprob, tokenizer),
            "top_logprobs": [_token(*top, tokenizer) for top in tops],
        }
        for token, logprob, tops in zip(tokens, logprobs, others, strict=True)
    ]


def _token(token: int, logprob: float, tokenizer: ChatTokenizer) -> JsonObject:
    text = tokenizer.decode([token])
    return {"token": text, "logprob": json_logprob(logprob), "bytes": list(text.encode())}
