"""Anthropic's Messages: https://docs.claude.com/en/api/messages"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.explorer.openai_api.dialects import ChatAnswer, in_turns
from services.explorer.openai_api.errors import InvalidApiRequest, messages_error
from services.explorer.openai_api.images import said_of
from trinity.runtime.logs import RateLimitedLog
from trinity.types import JsonObject, JsonValue

_limited = RateLimitedLog(logging.getLogger(__name__))

BILLING = "x-anthropic-billing-header"
"""Begins a system block of Claude Code that differs in each request and is not for the model."""
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
SAME_KEYS = ("model", "max_tokens", "temperature", "top_p", "top_k", "stream")
"""Keys that mean the same in a chat."""
SIGNATURE = "trinity"
"""Thoughts carry a signature, which clients send back; there is nothing to verify here."""


class MessagesExchange:
    """One request for a message."""

    def __init__(self, body: object, *, counts: bool = False) -> None:
        """Reads it; a request that only counts tokens has no limit and no stream."""
        if not isinstance(body, dict):
            raise InvalidApiRequest("the body is not a JSON object")
        if body.get("max_tokens") is None and not counts:
            raise InvalidApiRequest("`max_tokens` is missing", param="max_tokens")
        self.chat = to_chat({**body, "stream": False} if counts else body)
        self.going_on: JsonValue = None

    def answer_body(self, answer: ChatAnswer) -> JsonObject:
        """Returns the complete message."""
        return {
            **_head(answer.id, answer.model),
            "content": list(_blocks(answer.message)),
            **_ending(answer),
            "usage": _usage(answer.num_prompt_tokens, answer.num_tokens),
        }

    def event_writer(self) -> "MessageEvents":
        """Returns the writer of the streamed message."""
        return MessageEvents()


def to_chat(body: JsonObject) -> JsonObject:
    """Returns the body of the same request for a chat.

    Raises: InvalidApiRequest naming the key.
    """
    chat: JsonObject = {key: body[key] for key in SAME_KEYS if key in body}
    messages = [*_system(body.get("system")), *_messages(body.get("messages"))]
    chat["messages"] = [*in_turns(messages)]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if tools := _tools(body.get("tools")):
        chat["tools"] = tools
        chat |= _tool_choice(body.get("tool_choice"))
    output = body.get("output_config")
    form = output.get("format") if isinstance(output, dict) else None
    if isinstance(form, dict):
        schema: JsonObject = {"schema": form.get("schema")}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    return chat


def _system(value: JsonValue) -> list[JsonObject]:
    blocks = [value] if isinstance(value, str) else _texts(value or [], "system")
    if kept := [text for text in blocks if not text.startswith(BILLING)]:
        return [{"role": "system", "content": "\n\n".join(kept)}]
    return []


def _messages(value: JsonValue) -> Iterator[JsonObject]:
    if not isinstance(value, list) or not value:
        raise InvalidApiRequest("`messages` is not a list with a message in it", param="messages")
    for index, message in enumerate(value):
        where = f"messages[{index}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(message, dict) or role not in ("user", "assistant", "system"):
            raise InvalidApiRequest(f"`{where}` has no role of user or assistant", param=where)
        blocks = _content(message.get("content"), f"{where}.content")
        yield from _of_assistant(blocks) if role == "assistant" else _of_user(blocks, str(role))


def _content(value: JsonValue, where: str) -> list[JsonObject]:
    said: JsonValue = [{"type": "text", "text": value}]
    blocks = said if isinstance(value, str) else value
    if not isinstance(blocks, list):
        raise InvalidApiRequest(f"`{where}` is neither a text nor a list of blocks", param=where)
    return [_block(block, f"{where}[{index}]") for index, block in enumerate(blocks)]


def _block(block: JsonValue, where: str) -> JsonObject:
    """Returns a block whose parts are of the right types, with the result of a tool as a text."""
    kinds: Mapping[object, Mapping[str, type]] = {
        "text": {"text": str},
        "image": {"sha256": str},
        "thinking": {"thinking": str},
        "redacted_thinking": {},
        "tool_use": {"id": str, "name": str, "input": dict},
        "tool_result": {"tool_use_id": str},
    }
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(block, dict) or not isinstance(kind, str) or kind not in kinds:
        raise InvalidApiRequest(
            f"`{where}` is not a block of {', '.join(map(str, kinds))}, which are the ones read",
            param=where,
        )
    for key, needed in kinds[kind].items():
        if not isinstance(block.get(key), needed):
            raise InvalidApiRequest(f"`{where}.{key}` is missing or not right", param=where)
    if kind == "tool_result":
        return {**block, "content": said_of(block.get("content") or "", f"{where}.content", "\n")}
    return block


def _texts(value: JsonValue, where: str) -> list[str]:
    blocks = value if isinstance(value, list) else [None]
    texts = [block.get("text") if isinstance(block, dict) else None for block in blocks]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) != len(blocks):
        raise InvalidApiRequest(f"`{where}` is neither a text nor a list of texts", param=where)
    return found


def _joined(blocks: Sequence[JsonObject], kind: str) -> str:
    key = "thinking" if kind == "thinking" else "text"
    return "\n\n".join(str(block[key]) for block in blocks if block["type"] == kind)


def _of_user(blocks: Sequence[JsonObject], role: str) -> Iterator[JsonObject]:
    """Yields the results of tools, then the texts."""
    for block in blocks:
        if block["type"] == "tool_result":
            answered, content = block["tool_use_id"], block["content"]
            yield {"role": "tool", "tool_call_id": answered, "content": content}
    said: list[JsonValue] = [block for block in blocks if block["type"] in ("text", "image")]
    if said:
        yield {"role": role, "content": said_of(said, role, "\n\n")}


def _of_assistant(blocks: Sequence[JsonObject]) -> Iterator[JsonObject]:
    message: JsonObject = {"role": "assistant", "content": _joined(blocks, "text")}
    if thoughts := _joined(blocks, "thinking"):
        message["reasoning_content"] = thoughts
    calls: list[JsonValue] = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for block in blocks
        if block["type"] == "tool_use"
    ]
    yield {**message, "tool_calls": calls} if calls else message


def _tools(value: JsonValue) -> list[JsonValue]:
    """Returns the functions among the tools; Anthropic's servers run the others."""
    if not isinstance(value, list | None):
        raise InvalidApiRequest("`tools` is not a list", param="tools")
    found: list[JsonValue] = []
    for index, tool in enumerate(value or []):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise InvalidApiRequest(f"`tools[{index}]` has no name", param=f"tools[{index}]")
        if "input_schema" not in tool:
            told = {"type": str(tool.get("type"))[:80]}
            _limited.warning("requests offer a tool of Anthropic's servers, left out", extra=told)
            continue
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        if tool.get("description"):
            function["description"] = tool["description"]
        found.append({"type": "function", "function": function})
    return found


def _tool_choice(value: JsonValue) -> JsonObject:
    if value is None:
        return {}
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in (*TOOL_CHOICES, "tool"):
        raise InvalidApiRequest(
            "`tool_choice.type` is auto, any, tool or none", param="tool_choice"
        )
    named: JsonObject = {"type": "function", "function": {"name": value.get("name")}}
    choice: JsonObject = {"tool_choice": TOOL_CHOICES.get(str(kind), named)}
    if value.get("disable_parallel_tool_use"):
        choice["parallel_tool_calls"] = False
    return choice


def _head(answer_id: str, model: str) -> JsonObject:
    return {"id": f"msg_{answer_id}", "type": "message", "role": "assistant", "model": model}


def _blocks(message: JsonObject) -> Iterator[JsonValue]:
    if thoughts := message.get("reasoning_content"):
        yield {"type": "thinking", "thinking": thoughts, "signature": SIGNATURE}
    calls = message.get("tool_calls")
    if message.get("content") or not calls:
        yield {"type": "text", "text": message.get("content") or ""}
    for call in calls if isinstance(calls, list) else []:
        named, arguments = _called(call)
        yield {**named, "input": _parsed(arguments)}


def _called(call: JsonValue) -> tuple[JsonObject, str]:
    """Returns a call as a block without its input, and its arguments."""
    assert isinstance(call, dict) and isinstance(call["function"], dict)
    function = call["function"]
    return (
        {"type": "tool_use", "id": call["id"], "name": function["name"]},
        str(function["arguments"]),
    )


def _parsed(arguments: str) -> JsonValue:
    try:
        found: JsonValue = json.loads(arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}


def _ending(answer: ChatAnswer) -> JsonObject:
    reason = STOP_REASONS[answer.reason]
    if answer.stop is not None and reason == "end_turn":
        reason = "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _usage(num_prompt_tokens: int, num_tokens: int) -> JsonObject:
    return {
        "input_tokens": num_prompt_tokens,
        "output_tokens": num_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


@dataclass(slots=True)
class MessageEvents:
    """Writes the events of one message: blocks follow one another, each with an index."""

    _num_blocks: int = 0
    _kind: str = ""
    """The kind of the open block; empty if there is none."""

    def open(self, answer_id: str, model: str, num_prompt_tokens: int) -> Iterator[JsonObject]:
        """Yields the event that begins the message."""
        message = {**_head(answer_id, model), "content": [], "stop_reason": None}
        usage = _usage(num_prompt_tokens, 0)
        yield {
            "type": "message_start",
            "message": {**message, "stop_sequence": None, "usage": usage},
        }

    def add(self, delta: JsonObject) -> Iterator[JsonObject]:
        """Yields the events of a piece of the answer."""
        if thoughts := delta.get("reasoning_content"):
            yield from self._piece("thinking", "thinking_delta", thoughts)
            signed: JsonObject = {"type": "signature_delta", "signature": SIGNATURE}
            yield {"type": "content_block_delta", "index": self._index, "delta": signed}
        if text := delta.get("content"):
            yield from self._piece("text", "text_delta", text)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            named, arguments = _called(call)
            yield from self._start({**named, "input": {}})
            given: JsonObject = {"type": "input_json_delta", "partial_json": arguments}
            yield {"type": "content_block_delta", "index": self._index, "delta": given}

    def close(self, answer: ChatAnswer) -> Iterator[JsonObject]:
        """Yields the events that end the message."""
        if not self._num_blocks:
            yield from self._start({"type": "text", "text": ""})
        yield from self._stop()
        usage = _usage(answer.num_prompt_tokens, answer.num_tokens)
        yield {"type": "message_delta", "delta": _ending(answer), "usage": usage}
        yield {"type": "message_stop"}

    def fail(self, error: JsonObject) -> JsonObject:
        """Returns the event of a failure."""
        return messages_error(504 if error["code"] == "timeout" else 500, error)

    @property
    def _index(self) -> int:
        return self._num_blocks - 1

    def _piece(self, kind: str, delta: str, text: JsonValue) -> Iterator[JsonObject]:
        if self._kind != kind:
            begun: JsonObject = {"type": kind, kind: ""}
            yield from self._start({**begun, "signature": ""} if kind == "thinking" else begun)
        piece: JsonObject = {"type": delta, kind: text}
        yield {"type": "content_block_delta", "index": self._index, "delta": piece}

    def _start(self, block: JsonObject) -> Iterator[JsonObject]:
        yield from self._stop()
        self._kind = str(block["type"])
        self._num_blocks += 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _stop(self) -> Iterator[JsonObject]:
        if self._kind:
            yield {"type": "content_block_stop", "index": self._index}
        self._kind = ""
