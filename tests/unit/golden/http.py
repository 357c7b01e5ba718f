"""The explorer's OpenAI-compatible API: status, bodies and chunks, without texts of errors."""

import asyncio
import json
import re
from typing import Any

import aiohttp

from tests.unit.golden.adapters import explorer_api

CHAT, TEXT = "chat/completions", "completions"
ASKED: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "a"}]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
PROMPT: dict[str, Any] = {"model": "any", "prompt": "ab"}
POSTED: dict[str, tuple[str, Any]] = {
    "chat": (CHAT, ASKED),
    "chat, two answers": (CHAT, {**ASKED, "n": 2, "temperature": 0.5, "top_k": 7}),
    "chat, token ids": (CHAT, {**ASKED, "return_token_ids": True, "max_completion_tokens": 5}),
    "chat, cut": (CHAT, {**ASKED, "max_tokens": 2}),
    "chat, log probabilities": (CHAT, {**ASKED, "logprobs": True, "top_logprobs": 2}),
    "chat, parts": (
        CHAT,
        {**ASKED, "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]},
    ),
    "chat, tools": (CHAT, {**ASKED, "tools": [ADD]}),
    "chat, a tool that must be called": (
        CHAT,
        {**ASKED, "tools": [ADD], "tool_choice": "required"},
    ),
    "chat, JSON": (CHAT, {**ASKED, "response_format": {"type": "json_object"}}),
    "chat, a schema": (CHAT, {**ASKED, "response_format": SCHEMA}),
    "chat, stop": (CHAT, {**ASKED, "stop": ["e"]}),
    "chat, stream": (CHAT, {**ASKED, "stream": True}),
    "chat, stream with usage": (
        CHAT,
        {
            **ASKED,
            "n": 2,
            "stream": True,
            "logprobs": True,
            "stream_options": {"include_usage": True},
        },
    ),
    "chat, no messages": (CHAT, {"model": "any"}),
    "chat, empty messages": (CHAT, {**ASKED, "messages": []}),
    "chat, image": (
        CHAT,
        {
            **ASKED,
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
            ],
        },
    ),
    "chat, role unknown": (CHAT, {**ASKED, "messages": [{"role": "me", "content": "a"}]}),
    "chat, temperature below zero": (CHAT, {**ASKED, "temperature": -1}),
    "chat, temperature a text": (CHAT, {**ASKED, "temperature": "warm"}),
    "chat, no answers": (CHAT, {**ASKED, "n": 0}),
    "chat, no tokens": (CHAT, {**ASKED, "max_tokens": 0}),
    "chat, key unknown": (CHAT, {**ASKED, "no_such_key": 1}),
    "chat, logit bias": (CHAT, {**ASKED, "logit_bias": {"1": 2}}),
    "chat, too long": (CHAT, {**ASKED, "messages": [{"role": "user", "content": "a" * 300}]}),
    "chat, a list": (CHAT, [1]),
    "chat, no JSON": (CHAT, "{"),
    "text": (TEXT, PROMPT),
    "text, tokens": (TEXT, {**PROMPT, "prompt": [97, 98]}),
    "text, two prompts": (TEXT, {**PROMPT, "prompt": ["a", "b"]}),
    "text, log probabilities": (TEXT, {**PROMPT, "logprobs": 2}),
    "text, echo": (TEXT, {**PROMPT, "echo": True, "logprobs": 1}),
    "text, echo alone": (TEXT, {**PROMPT, "echo": True, "max_tokens": 0, "logprobs": 1}),
    "text, stream": (TEXT, {**PROMPT, "stream": True}),
    "text, no prompt": (TEXT, {"model": "any"}),
    "text, suffix": (TEXT, {**PROMPT, "suffix": "x"}),
    "text, best of": (TEXT, {**PROMPT, "best_of": 3}),
    "embeddings": ("embeddings", {"model": "any", "input": "a"}),
}
_NUMBERED = re.compile(r"^((?:chatcmpl|cmpl|call|chatcmpl-tool)-).+")


def answers() -> dict[str, Any]:
    """Every request with its answer."""
    return asyncio.run(_answers())


async def _answers() -> dict[str, Any]:
    results: dict[str, Any] = {}
    async with explorer_api() as (address, key), aiohttp.ClientSession() as session:
        root = address.partition("/sessions/")[0]
        bearer = {"Authorization": f"Bearer {key}"}
        wrong = {"Authorization": "Bearer wrong"}
        for name, (path, body) in POSTED.items():
            raw = body if isinstance(body, str) else json.dumps(body)
            async with session.post(f"{address}/{path}", data=raw, headers=bearer) as response:
                results[name] = await _told(response)
        for name, url, headers in (
            ("models", f"{address}/models", bearer),
            ("models at the root", f"{root}/v1/models", bearer),
            ("models without a key", f"{address}/models", {}),
            ("models with a wrong key", f"{address}/models", wrong),
            ("health", f"{root}/health", {}),
            ("no such page", f"{root}/nothing", bearer),
            ("chat by GET", f"{address}/{CHAT}", bearer),
        ):
            async with session.get(url, headers=headers) as response:
                results[name] = await _told(response)
        gone = f"{root}/sessions/0/v1/{CHAT}"
        async with session.post(gone, json=ASKED, headers=bearer) as response:
            results["an attempt that is over"] = await _told(response)
        async with session.post(f"{address}/{CHAT}", json=ASKED, headers=wrong) as response:
            results["chat with a wrong key"] = await _told(response)
    return results


async def _told(response: aiohttp.ClientResponse) -> dict[str, Any]:
    text = await response.text()
    if response.content_type == "text/event-stream":
        lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
        body: Any = [_plain(json.loads(line)) if line != "[DONE]" else line for line in lines]
    else:
        body = _plain(json.loads(text)) if text else None
    return {"status": response.status, "type": response.content_type, "body": body}


def _plain(body: Any) -> Any:
    """Without what is drawn or told to people."""
    if isinstance(body, list):
        return [_plain(item) for item in body]
    if isinstance(body, str):
        return _NUMBERED.sub(r"\1<drawn>", body)
    if not isinstance(body, dict):
        return body
    told = {key: _plain(value) for key, value in body.items()}
    if isinstance(told.get("created"), int):
        told["created"] = "<a time>"
    if isinstance(error := told.get("error"), dict) and isinstance(error.get("message"), str):
        error["message"] = "<a text>"
    return told
