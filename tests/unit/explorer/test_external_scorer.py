"""A model that scores at an address with vLLM's `/classify` and `/pooling`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from services.explorer.engine.external import read_external_access
from services.explorer.engine.external_scorer import ExternalScorer
from tests.unit.explorer.test_external_engine import SOURCE
from trinity.errors import RolloutStageFailed, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy
from trinity.types import SamplingParams
from trinity.workflows.generation import RatedChat
from trinity.workflows.messages import Message

CHAT = RatedChat(
    messages=[Message(role="user", content="a"), Message(role="assistant", content="bc")]
)
STEPS = RatedChat(messages=CHAT.messages, step_ends=[1, 2])


@dataclass
class Pooler:
    """A server of the two paths, of which it may lack `/classify`; it notes what it is asked."""

    classes: Any = None
    pooled: Any = None
    bodies: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    async def _answer(self, request: web.Request) -> web.Response:
        self.bodies.append((request.path, await request.json()))
        assert request.headers["Authorization"] == "Bearer secret"
        given = self.classes if request.path == "/classify" else self.pooled
        if isinstance(given, int):
            return web.Response(status=given)
        name = "probs" if request.path == "/classify" else "data"
        return web.json_response({"data": [{"index": 0, name: given}]})

    @asynccontextmanager
    async def asked(self, seconds: float = 600.0) -> AsyncIterator[ExternalScorer]:
        app = web.Application()
        for path in ("/classify", "/pooling"):
            app.router.add_post(path, self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        variables = {"THEIR_ADDRESS": address, "THEIR_KEY": "secret"}
        waits = WaitRegistry(owner="explorer", on_change=lambda: None)
        engine = ExternalScorer(
            access=read_external_access(SOURCE, variables),
            retry_policy=RetryPolicy(waits, seconds),
            template_kwargs={"enable_thinking": False},
        )
        try:
            yield engine
        finally:
            await engine.close()
            await runner.cleanup()


async def test_a_whole_chat_is_classified_and_its_logits_are_raw() -> None:
    server = Pooler(classes=[-1.5, 2.0])
    async with server.asked() as engine:
        assert await engine.rate(CHAT) == [[-1.5, 2.0]]
    [(path, body)] = server.bodies
    assert path == "/classify"
    assert body["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "bc"},
    ]
    assert (body["model"], body["use_activation"]) == ("their-model", False)
    assert (body["add_generation_prompt"], body["chat_template_kwargs"]) == (
        False,
        {"enable_thinking": False},
    )


async def test_without_classes_the_last_pooled_token_counts() -> None:
    server = Pooler(classes=404, pooled=[[0.0], [1.0], [2.5]])
    async with server.asked() as engine:
        assert [await engine.rate(CHAT), await engine.rate(CHAT)] == [[[2.5]], [[2.5]]]
    assert [path for path, _ in server.bodies] == ["/classify", "/pooling", "/pooling"]
    assert server.bodies[1][1]["task"] == "token_classify"


async def test_steps_are_the_tokens_that_the_server_pools() -> None:
    server = Pooler(classes=500, pooled=[[0.0, 1.0], [2.0, 3.0]])
    async with server.asked() as engine:
        assert await engine.rate(STEPS) == [[0.0, 1.0], [2.0, 3.0]]
        server.pooled = [0.5, 1.5, 2.5]
        with pytest.raises(UserError, match="returned 3 scores for 2 steps"):
            await engine.rate(STEPS)


async def test_failures_are_those_of_other_models_elsewhere() -> None:
    server = Pooler(classes=404, pooled=404)
    async with server.asked() as engine:
        with pytest.raises(RolloutStageFailed, match="correct the address in THEIR_ADDRESS"):
            await engine.rate(CHAT)
    async with Pooler(classes="nothing").asked(seconds=0.0) as engine:
        with pytest.raises(RolloutStageFailed, match="no classification"):
            await engine.rate(CHAT)
        with pytest.raises(UserError, match="scores texts and writes none"):
            await engine.generate([1], SamplingParams(max_tokens=1))
