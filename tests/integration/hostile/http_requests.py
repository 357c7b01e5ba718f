"""Requests to an OpenAI-compatible address: nearly right, wild, or none at all."""

import json
from dataclasses import dataclass
from random import Random

from tests.integration.hostile.values import DEEP, TEXTS
from trinity.types import JsonObject, JsonValue

ASKED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"),
    *("/v1/messages/count_tokens", "/inference/v1/generate"),
)
PATHS = (*ASKED, "/v1/models", "/v1/models/any", "/health")
STRANGE_PATHS = (
    *("", "/", "/v1", "/v1/../health", "/v1/%00", "/%2e%2e/etc/passwd"),
    "/" + "a" * 9_000,
)
SCHEMES = ("Bearer ", "bearer ", "Basic ", "")
TRANSFERS = ("Transfer-Encoding: chunked", "Expect: 100-continue")
STRANGE_HEADERS = ("A: " + "b" * 9_000, "Content-Encoding: gzip", "a\0: b")
CHARSETS = ("utf-8", "UTF-8", "latin-1", "utf-16", "utf-7", "nonsense", "\x7f", "idna", "rot13")
NUMBERS: tuple[JsonValue, ...] = (
    *(0, -1, 1, 2, 3, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e308),
    *(float("nan"), float("inf"), True, None, "1", [], {}),
)
COUNTS = ("n", "max_tokens", "max_completion_tokens", "top_k", "top_logprobs", "seed", "best_of")
FRACTIONS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "logprobs")
KEYS = (
    *("stream", "stop", "stream_options", "response_format", "tools", "tool_choice", "system"),
    *("stop_sequences", "output_config", "instructions", "text", "previous_response_id"),
)
BLOCKS = ("text", "thinking", "tool_use", "tool_result", "input_text", "image")
ITEMS = ("message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "a")
LARGEST_COUNT = 4
"""Right requests ask for little: how long an engine computes is not what is looked at."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as it goes over the wire."""

    content: bytes
    is_whole: bool = False
    """Whether the server knows where it ends; it may wait for more of another."""

    @property
    def first_line(self) -> str:
        return self.content.split(b"\r\n")[0][:80].decode(errors="replace")


class HttpFuzzer:
    """Makes requests to the address below `prefix`; the same seed makes the same ones."""

    def __init__(self, seed: int, *, prefix: str, key: str) -> None:
        self._random = Random(seed)
        self._prefix = prefix
        self._key = key

    def request(self) -> HttpRequest:
        """Returns one request."""
        if self._one_in(20):
            return HttpRequest(self._random.randbytes(self._random.choice((1, 20, 2_000))))
        path = self._prefix + self._random.choice(PATHS)
        if self._one_in(15):
            path = self._random.choice(STRANGE_PATHS)
        method = "POST" if path.endswith(ASKED) else "GET"
        if self._one_in(15):
            method = self._random.choice(("PUT", "HEAD", "OPTIONS", "get", "X" * 300, ""))
        body = self._body(path)
        head = f"{method} {path} HTTP/1.1\r\n".encode() + self._headers(body)
        is_whole = f"Content-Length: {len(body)}\r\n".encode() in head and b"Transfer" not in head
        return HttpRequest(head + body, is_whole)

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def _headers(self, body: bytes) -> bytes:
        scheme = self._random.choice(SCHEMES) if self._one_in(9) else "Bearer "
        key = self._random.choice(("", "\xff", "a" * 5_000)) if self._one_in(15) else self._key
        charset = self._random.choice(CHARSETS) if self._one_in(5) else "utf-8"
        length = self._random.choice((0, -1, 10**30)) if self._one_in(25) else len(body)
        lines = [
            "Host: localhost",
            f"Authorization: {scheme}{key}",
            f"Content-Type: application/json; charset={charset}",
            f"Content-Length: {length}",
            "Connection: close",
        ]
        if self._one_in(25):
            lines.append(self._random.choice(TRANSFERS))
        if self._one_in(25):
            lines.append(self._random.choice(STRANGE_HEADERS))
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _body(self, path: str) -> bytes:
        match self._random.randrange(12):
            case 0:
                return self._random.randbytes(self._random.choice((0, 1, 20, 2_000)))
            case 1:
                return self._random.choice((DEEP, '{"a":' * 20_000, '"\\ud800"', "")).encode()
        body = json.dumps(self._fields(path)).encode()
        if self._one_in(8):
            place = self._random.randrange(len(body))
            return body[:place] + self._random.randbytes(1) + body[place + 1 :]
        return body

    def _fields(self, path: str) -> JsonObject:
        found: JsonObject = {"model": "any", "max_tokens": LARGEST_COUNT}
        if "chat" in path or "messages" in path:
            found["messages"] = [self._message() for _ in range(self._random.randrange(1, 4))]
        elif "responses" in path:
            found = {"max_output_tokens": LARGEST_COUNT, "input": self._items()}
        elif "generate" in path:
            found = {"token_ids": [1, 2], "sampling_params": found}
        else:
            prompts: tuple[JsonValue, ...] = ("a", [1, 2], ["a", "b"], self._text(), [[]])
            found["prompt"] = self._random.choice(prompts)
        for name in (*COUNTS, *FRACTIONS):
            if self._one_in(12):
                found[name] = self._random.choice(NUMBERS)
        for name in KEYS:
            if self._one_in(12):
                found[name] = self._wild(0)
        if self._one_in(6):
            found[self._random.choice(list(found))] = self._wild(0)
        if self._one_in(4):
            found["stream"] = True
        return found

    def _message(self) -> JsonValue:
        if self._one_in(10):
            return self._wild(0)
        content: JsonValue = "a" if self._one_in(2) else self._text()
        if self._one_in(4):
            content = [{"type": "text", "text": content}, self._wild(1)]
        elif self._one_in(3):
            content = [self._block()]
        message: JsonObject = {"role": self._random.choice(("user", "assistant", "tool", "\0"))}
        message["content"] = content
        if self._one_in(6):
            call: JsonObject = {"name": self._text(), "arguments": self._text()}
            message["tool_calls"] = [{"id": "1", "type": "function", "function": call}]
        return message

    def _block(self) -> JsonObject:
        """Returns a block of a message as Anthropic has it; every second one is right."""
        keys = ("text", "thinking", "id", "name", "tool_use_id", "content", "output")
        block: JsonObject = {key: self._text() for key in keys}
        block |= {"type": self._random.choice(BLOCKS), "input": {}}
        if self._one_in(2):
            block[self._random.choice(list(block))] = self._wild(1)
        return block

    def _items(self) -> JsonValue:
        if self._one_in(6):
            return self._wild(0)
        items: list[JsonValue] = []
        for _ in range(self._random.randrange(1, 4)):
            named: JsonObject = {"type": self._random.choice(ITEMS), "call_id": self._text()}
            message = self._message()
            items.append(
                {**self._block(), **named} | (message if isinstance(message, dict) else {})
            )
        return items

    def _text(self) -> str:
        return self._random.choice((*self._random.choice(TEXTS), "\ud800", "\U0001f600"))[:5_000]

    def _wild(self, depth: int) -> JsonValue:
        match self._random.randrange(6 if depth < 4 else 2):
            case 0:
                return self._text()
            case 1 | 2:
                return self._random.choice(NUMBERS)
            case 3:
                return [self._wild(depth + 1) for _ in range(self._random.randrange(4))]
        names = ("type", "function", "name", "parameters", "schema", "json_schema", "include_usage")
        return {self._random.choice(names): self._wild(depth + 1) for _ in range(3)}
