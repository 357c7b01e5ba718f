"""The input of OpenAI's Responses: tools, items, and the earlier chat that it goes on."""

import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.images import said_of
from trinity.runtime.logs import RateLimitedLog
from trinity.types import JsonObject, JsonValue

_limited = RateLimitedLog(logging.getLogger(__name__))

MAX_KEPT_CHARACTERS = 64 << 20
"""The oldest chats are forgotten first."""
ROLES = {"developer": "system"}
FREE_TEXT: JsonObject = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The arguments of a tool that takes a text rather than JSON."""


@dataclass(frozen=True, slots=True)
class ResponseTools:
    """The tools of a request, under the names that the model sees."""

    functions: list[JsonValue]
    names: Mapping[str, tuple[str, str]]
    """Namespace and name of each, by the model's name."""
    free: frozenset[str]
    """Those that take a text."""

    @classmethod
    def read(cls, value: JsonValue) -> "ResponseTools":
        """Reads them; tools that OpenAI's servers run are left out."""
        if not isinstance(value, list | None):
            raise InvalidApiRequest("`tools` is not a list", param="tools")
        found: dict[str, tuple[str, str]] = {}
        functions: list[JsonValue] = []
        free = set[str]()
        for space, tool in _flat(value or []):
            kind, name = tool.get("type"), tool.get("name")
            if kind not in ("function", "custom"):
                told = {"type": str(kind)[:80]}
                _limited.warning("requests offer a tool of OpenAI's servers, left out", extra=told)
                continue
            if not isinstance(name, str):
                raise InvalidApiRequest("a tool of `tools` has no name", param="tools")
            seen = seen_name(space, name)
            found[seen] = (space, name)
            parameters = tool.get("parameters") if kind == "function" else FREE_TEXT
            if kind == "custom":
                free.add(seen)
            function: JsonObject = {"name": seen, "description": tool.get("description") or ""}
            if parameters is not None:
                function["parameters"] = parameters
            functions.append({"type": "function", "function": function})
        return cls(functions, found, frozenset(free))

    def choice(self, value: JsonValue) -> JsonValue:
        """Returns the choice as a chat has it."""
        if not isinstance(value, dict):
            return "auto" if value is None else value
        if value.get("type") == "allowed_tools":
            return value.get("mode") or "auto"
        name = seen_name(str(value.get("namespace") or ""), str(value.get("name")))
        return {"type": "function", "function": {"name": name}}

    def call_item(self, call_id: str, seen: str, arguments: str) -> JsonObject:
        """Returns the item of a call."""
        space, name = self.names.get(seen, ("", seen))
        item: JsonObject = {"call_id": call_id, "name": name, "status": "completed"}
        if space:
            item["namespace"] = space
        if seen in self.free:
            text = _free_text(arguments)
            return {**item, "id": f"ctc_{call_id}", "type": "custom_tool_call", "input": text}
        return {**item, "id": f"fc_{call_id}", "type": "function_call", "arguments": arguments}


def seen_name(space: str, name: str) -> str:
    """Returns a tool's name for the model, which knows no namespaces."""
    return f"{space.rstrip('_')}__{name}" if space else name


def _flat(tools: Sequence[JsonValue], space: str = "") -> Iterator[tuple[str, JsonObject]]:
    for tool in tools:
        if not isinstance(tool, dict):
            raise InvalidApiRequest("`tools` has a member that is not an object", param="tools")
        inner = tool.get("tools")
        if tool.get("type") == "namespace" and isinstance(inner, list) and not space:
            yield from _flat(inner, str(tool.get("name")))
        else:
            yield space, tool


def _free_text(arguments: str) -> str:
    try:
        found = json.loads(arguments)
    except ValueError:
        return arguments
    return str(found.get("input", arguments)) if isinstance(found, dict) else arguments


def read_input(value: JsonValue) -> list[JsonObject]:
    """Returns the messages of a chat, one for each item.

    Raises: InvalidApiRequest naming the item.
    """
    said: JsonValue = [{"role": "user", "content": value}]
    items = said if isinstance(value, str) else value
    if not isinstance(items, list) or not items:
        raise InvalidApiRequest("`input` is neither a text nor a list with an item", param="input")
    found: list[JsonObject] = []
    for index, item in enumerate(items):
        where = f"input[{index}]"
        if not isinstance(item, dict):
            raise InvalidApiRequest(f"`{where}` is not an object", param=where)
        found.append(_message(item, where))
    return found


def _message(item: JsonObject, where: str) -> JsonObject:
    kind = item.get("type", "message")
    match kind:
        case "message":
            role = str(item.get("role"))
            said = said_of(item.get("content"), f"{where}.content", "\n")
            return {"role": ROLES.get(role, role), "content": said}
        case "reasoning":
            thoughts = said_of(item.get("content") or item.get("summary") or "", where, "\n")
            return {"role": "assistant", "content": "", "reasoning_content": thoughts}
        case "function_call" | "custom_tool_call":
            return {"role": "assistant", "content": "", "tool_calls": [_call(item, where)]}
        case "function_call_output" | "custom_tool_call_output":
            said = said_of(item.get("output"), f"{where}.output", "\n")
            return {"role": "tool", "tool_call_id": str(item.get("call_id")), "content": said}
    raise InvalidApiRequest(
        f"`{where}` is of type {kind!r:.60}: messages, thoughts, calls of functions and their "
        "results are read",
        param=where,
    )


def _call(item: JsonObject, where: str) -> JsonObject:
    name, call_id = item.get("name"), item.get("call_id")
    if not isinstance(name, str) or not isinstance(call_id, str):
        raise InvalidApiRequest(f"`{where}` has no `name` and `call_id`", param=where)
    arguments = item.get("arguments")
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({"input": item.get("input")})
    seen = seen_name(str(item.get("namespace") or ""), name)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": seen, "arguments": arguments},
    }


class Chats(Protocol):
    """Chats by the response that each ends with."""

    def keep(self, response_id: str, messages: Sequence[JsonObject]) -> None:
        """Keeps the messages up to and with a response."""
        ...

    def messages_of(self, response_id: JsonValue) -> list[JsonObject]:
        """Returns the messages; raises InvalidApiRequest for a response that is not kept."""
        ...


@dataclass(slots=True)
class KeptChats:
    """Chats of a served model; they are lost with the process."""

    _chats: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _num_characters: int = 0

    def keep(self, response_id: str, messages: Sequence[JsonObject]) -> None:
        """Keeps the messages up to and with a response."""
        chat = json.dumps(list(messages))
        self._chats[response_id] = chat
        self._num_characters += len(chat)
        while self._num_characters > MAX_KEPT_CHARACTERS:
            _, oldest = self._chats.popitem(last=False)
            self._num_characters -= len(oldest)

    def messages_of(self, response_id: JsonValue) -> list[JsonObject]:
        """Returns the messages; raises InvalidApiRequest for a response that is not kept."""
        if response_id is None:
            return []
        if not isinstance(response_id, str) or response_id not in self._chats:
            raise not_kept(response_id)
        messages: list[JsonObject] = json.loads(self._chats[response_id])
        return messages


def not_kept(response_id: JsonValue) -> InvalidApiRequest:
    """Returns the refusal of a request that goes on from an unknown response."""
    return InvalidApiRequest(
        f"the response {response_id!r:.80} is not kept here (any more): send the whole history as "
        "`input`",
        param="previous_response_id",
        code="previous_response_not_found",
    )
