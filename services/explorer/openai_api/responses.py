"""OpenAI's Responses: https://platform.openai.com/docs/api-reference/responses"""

import itertools
import time
from collections.abc import Iterator, Mapping

from services.explorer.openai_api.dialects import ChatAnswer, in_turns
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.response_input import Chats, ResponseTools, read_input
from trinity.types import JsonObject, JsonValue

SAME_KEYS = ("model", "temperature", "top_p", "stream", "parallel_tool_calls")
"""Keys that mean the same in a chat."""
SHOWN_KEYS: Mapping[str, JsonValue] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": None,
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}
"""Keys of a request that its response repeats, and their defaults."""


class ResponsesExchange:
    """One request for a response."""

    def __init__(self, body: object, kept: Chats) -> None:
        if not isinstance(body, dict):
            raise InvalidApiRequest("the body is not a JSON object")
        if body.get("background"):
            raise InvalidApiRequest("`background` is not supported here", param="background")
        self._body = body
        self._kept = kept
        self._tools = ResponseTools.read(body.get("tools"))
        # Instructions are of this request alone, and are not kept for the next one.
        previous = body.get("previous_response_id")
        asked = read_input(body.get("input"))
        self._history = [*kept.messages_of(previous), *asked]
        is_stored = body.get("store") is not False
        self.going_on: JsonValue = {"previous": previous, "input": [*asked]} if is_stored else None
        self.chat = self._chat()

    def _chat(self) -> JsonObject:
        body = self._body
        chat: JsonObject = {key: body[key] for key in SAME_KEYS if body.get(key) is not None}
        first: JsonObject = {"role": "system", "content": body.get("instructions") or ""}
        messages = [first, *self._history] if first["content"] else self._history
        chat["messages"] = [*in_turns(messages)]
        if body.get("max_output_tokens") is not None:
            chat["max_tokens"] = body["max_output_tokens"]
        if self._tools.functions:
            chat["tools"] = [*self._tools.functions]
            chat["tool_choice"] = self._tools.choice(body.get("tool_choice"))
        text = body.get("text")
        form = text.get("format") if isinstance(text, dict) else None
        if isinstance(form, dict):
            schema: JsonObject = {"type": form.get("type")}
            if form.get("type") == "json_schema":
                schema["json_schema"] = {"schema": form.get("schema")}
            chat["response_format"] = schema
        return chat

    def answer_body(self, answer: ChatAnswer) -> JsonObject:
        """Returns the complete response."""
        output = list(self.items(answer))
        if self._body.get("store") is not False:
            said = {**answer.message, "content": answer.message.get("content") or ""}
            self._kept.keep(f"resp_{answer.id}", [*self._history, said])
        done = answer.reason != "length"
        total = answer.num_prompt_tokens + answer.num_tokens
        return {
            **self.head(answer.id, answer.model, "completed" if done else "incomplete"),
            "incomplete_details": None if done else {"reason": "max_output_tokens"},
            "output": [*output],
            "usage": {
                "input_tokens": answer.num_prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": answer.num_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": total,
            },
        }

    def event_writer(self) -> "ResponseEvents":
        """Returns the writer of the streamed response."""
        return ResponseEvents(self)

    def head(self, answer_id: str, model: str, status: str) -> JsonObject:
        """Returns a response without output."""
        shown = {key: self._body.get(key, default) for key, default in SHOWN_KEYS.items()}
        return {
            **shown,
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": [],
        }

    def items(self, answer: ChatAnswer) -> Iterator[JsonObject]:
        """Yields the items of the output."""
        message = answer.message
        if thoughts := message.get("reasoning_content"):
            yield reasoning_item(answer.id, str(thoughts))
        calls = message.get("tool_calls")
        if message.get("content") or not calls:
            yield message_item(answer.id, str(message.get("content") or ""))
        for call in calls if isinstance(calls, list) else []:
            yield self.call_item(call)

    def call_item(self, call: JsonValue) -> JsonObject:
        """Returns the item of a call, as the request named its tool."""
        assert isinstance(call, dict) and isinstance(call["function"], dict)
        function = call["function"]
        return self._tools.call_item(
            str(call["id"]), str(function["name"]), str(function["arguments"])
        )


def message_item(answer_id: str, text: str, status: str = "completed") -> JsonObject:
    """Returns the item of a message."""
    content: list[JsonValue] = [text_part(text)] if status == "completed" else []
    item: JsonObject = {"id": f"msg_{answer_id}", "type": "message", "role": "assistant"}
    return {**item, "status": status, "content": content}


def text_part(text: str) -> JsonObject:
    """Returns a part of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def reasoning_item(answer_id: str, text: str) -> JsonObject:
    """Returns the item of thoughts."""
    content: list[JsonValue] = [{"type": "reasoning_text", "text": text}] if text else []
    return {"id": f"rs_{answer_id}", "type": "reasoning", "summary": [], "content": content}


class ResponseEvents:
    """Writes the events of one response: items follow one another, each with its parts."""

    def __init__(self, exchange: ResponsesExchange) -> None:
        self._exchange = exchange
        self._numbers = itertools.count()
        self._num_items = 0
        self._text = ""
        self._id = ""
        self._is_open = False
        """True while a message is being written."""

    def open(self, answer_id: str, model: str, num_prompt_tokens: int) -> Iterator[JsonObject]:
        """Yields the events that begin the response."""
        del num_prompt_tokens
        self._id = answer_id
        head = self._exchange.head(answer_id, model, "in_progress")
        yield self._event("response.created", response=head)
        yield self._event("response.in_progress", response=head)

    def add(self, delta: JsonObject) -> Iterator[JsonObject]:
        """Yields the events of a piece of the answer."""
        if thoughts := delta.get("reasoning_content"):
            yield from self._think(str(thoughts))
        if text := delta.get("content"):
            yield from self._say(str(text))
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            yield from self._stop()
            yield from self._call(self._exchange.call_item(call))

    def close(self, answer: ChatAnswer) -> Iterator[JsonObject]:
        """Yields the events that end the response."""
        if not self._num_items:
            yield from self._say("")
        yield from self._stop()
        body = self._exchange.answer_body(answer)
        yield self._event(f"response.{body['status']}", response=body)

    def fail(self, error: JsonObject) -> JsonObject:
        """Returns the event of a failure."""
        told = {key: error.get(key) for key in ("message", "param")}
        return self._event("error", **told, code=error.get("code") or error["type"])

    def _event(self, kind: str, **fields: JsonValue) -> JsonObject:
        return {"type": kind, "sequence_number": next(self._numbers), **fields}

    def _of_item(self, kind: str, item: JsonObject, **fields: JsonValue) -> JsonObject:
        """Returns an event about a part of the item that is being written."""
        return self._event(kind, item_id=item["id"], output_index=self._num_items - 1, **fields)

    def _added(self, item: JsonObject) -> JsonObject:
        self._num_items += 1
        index = self._num_items - 1
        return self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, item: JsonObject) -> JsonObject:
        index = self._num_items - 1
        return self._event("response.output_item.done", output_index=index, item=item)

    def _say(self, text: str) -> Iterator[JsonObject]:
        item = message_item(self._id, "", "in_progress")
        if not self._is_open:
            self._is_open, self._text = True, ""
            yield self._added(item)
            part = text_part("")
            yield self._of_item("response.content_part.added", item, content_index=0, part=part)
        if text:
            self._text += text
            told: JsonObject = {"content_index": 0, "delta": text, "logprobs": []}
            yield self._of_item("response.output_text.delta", item, **told)

    def _stop(self) -> Iterator[JsonObject]:
        """Ends the message, if one is being written."""
        if not self._is_open:
            return
        self._is_open = False
        item = message_item(self._id, self._text)
        told: JsonObject = {"content_index": 0, "text": self._text, "logprobs": []}
        yield self._of_item("response.output_text.done", item, **told)
        part = text_part(self._text)
        yield self._of_item("response.content_part.done", item, content_index=0, part=part)
        yield self._done(item)

    def _think(self, text: str) -> Iterator[JsonObject]:
        item = reasoning_item(self._id, text)
        yield self._added(reasoning_item(self._id, ""))
        yield self._of_item("response.reasoning_text.delta", item, content_index=0, delta=text)
        yield self._of_item("response.reasoning_text.done", item, content_index=0, text=text)
        yield self._done(item)

    def _call(self, item: JsonObject) -> Iterator[JsonObject]:
        key = "arguments" if item["type"] == "function_call" else "input"
        kind = "function_call_arguments" if key == "arguments" else "custom_tool_call_input"
        yield self._added({**item, key: "", "status": "in_progress"})
        yield self._of_item(f"response.{kind}.delta", item, delta=item[key])
        told: JsonObject = {key: item[key]}
        if key == "arguments":
            told["name"] = item["name"]
        yield self._of_item(f"response.{kind}.done", item, **told)
        yield self._done(item)
