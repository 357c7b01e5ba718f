"""A model that others serve, behind a real HTTP server."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from services.explorer.engine import external
from services.explorer.engine.external import ByteTokenizer, ExternalEngine, read_external_access
from services.explorer.openai_api.server import AttemptApiServer
from tests.support.chat_server import KEY, ChatServer
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from trinity.config.plan.parts import ExternalAccess
from trinity.config.schema.explorer import RolloutModelConfig
from trinity.errors import RolloutStageFailed, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RetryPolicy
from trinity.types import SamplingParams
from trinity.workflows.generation import ANY_OBJECT, ModelLimits
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper

SOURCE = ExternalAccess(
    base_url_env="THEIR_ADDRESS", api_key_env="THEIR_KEY", model_name="their-model"
)
HELLO = [Message(role="system", content="be brief"), Message(role="user", content="hëllo")]
PATIENT, IMPATIENT = 600.0, 0.0


@dataclass
class World:
    """A server, and engines that ask it."""

    server: ChatServer
    engines: list[ExternalEngine] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.waits = WaitRegistry(owner="explorer", on_change=self.changed.set)

    def engine(
        self, seconds: float = PATIENT, address: str = "", key: str = KEY, **template_kwargs: str
    ) -> ExternalEngine:
        variables = {"THEIR_ADDRESS": address or self.server.address, "THEIR_KEY": key}
        retry_policy = RetryPolicy(self.waits, seconds)
        made = ExternalEngine(
            access=read_external_access(SOURCE, variables),
            retry_policy=retry_policy,
            template_kwargs={**template_kwargs},
        )
        self.engines.append(made)
        return made


def model(engine: ExternalEngine) -> ModelWrapper:
    return ModelWrapper(
        generator=engine,
        tokenizer=ByteTokenizer(),
        limits=ModelLimits.unknown(),
        sampling=SamplingParams(max_tokens=16, temperature=0.5),
        weights=(0, 0),
        seed_of_call=lambda call: 100 + call,
    )


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ChatServer().serving() as server:
        world = World(server)
        yield world
        for engine in world.engines:
            await engine.close()


@contextmanager
def hushed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that is logged in the block holds the key."""
    with caplog.at_level(logging.DEBUG):
        yield
    assert KEY not in caplog.text


async def test_it_is_asked_with_the_chat_the_seed_and_the_key(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with hushed(caplog):
        [first, second] = await model(world.engine()).chat_async(HELLO, n=2, stop=["x"])
    assert first.response_text == second.response_text == "HËLLO"
    assert first.sequence.prompt_text == "system: be brief\nuser: hëllo\n"
    [asked, other] = world.server.requests
    assert asked["messages"] == [dict(one) for one in HELLO]
    assert (asked["model"], asked["max_tokens"], asked["stop"]) == ("their-model", 16, ["x"])
    assert sorted([str(asked["seed"]), str(other["seed"])]) == ["100", "101"]
    assert "top_k" not in asked and "min_p" not in asked
    assert world.server.keys == [f"Bearer {KEY}"] * 2


async def test_the_form_of_an_answer_is_asked_of_it_too(world: World) -> None:
    grade = {"type": "object", "properties": {"grade": {"type": "integer"}}}
    asked = model(world.engine())
    for schema in ("", ANY_OBJECT, json.dumps(grade)):
        await asked.chat_async(HELLO, json_schema=schema)
    plain, whatever, graded = world.server.requests
    assert "response_format" not in plain
    assert whatever["response_format"] == {"type": "json_object"}
    described = {"name": "answer", "schema": grade}
    assert graded["response_format"] == {"type": "json_schema", "json_schema": described}


async def test_variables_of_its_chat_template_are_sent_where_they_are_set(world: World) -> None:
    await model(world.engine()).chat_async(HELLO)
    await model(world.engine(reasoning_effort="high")).chat_async(HELLO)
    plain, told = world.server.requests
    assert "chat_template_kwargs" not in plain
    assert told["chat_template_kwargs"] == {"reasoning_effort": "high"}


async def test_it_is_not_asked_about_tokens(world: World) -> None:
    asked = model(world.engine())
    with pytest.raises(UserError, match="`their-model`, which others serve, gives no log-"):
        await asked.logprobs_async([1, 2])
    for tokens in ([300], [1, 2]):
        with pytest.raises(UserError, match="with text, not with tokens"):
            await asked.generate_async([tokens])
    assert world.server.requests == []


async def test_nothing_of_its_answers_is_trained(world: World) -> None:
    [answer] = await model(world.engine()).chat_async(HELLO)
    assert not answer.sequence.action_mask.any()
    assert answer.sequence.response_length == len(answer.sequence.rollout_logprobs)


async def test_our_own_endpoint_is_asked_like_any_other() -> None:
    rollout = RolloutModelConfig(enable_openai_api=True, api_key=KEY)
    api = AttemptApiServer(model_path="m", rollout=rollout, tokenizer=CharacterTokenizer())
    await api.start_api()
    served = ModelWrapper(
        generator=ArithmeticEngine(),
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(max_tokens=8),
        weights=(0, 0),
        seed_of_call=lambda call: call,
    )
    world = World(ChatServer())
    engine = world.engine(address=api.register_attempt(served).address)
    [answer] = await model(engine).chat_async(HELLO)
    assert len(answer.response_text) == ArithmeticEngine().num_tokens
    await engine.close()
    await api.stop_api()


async def test_a_busy_server_is_asked_again_and_the_wait_is_shown(world: World) -> None:
    world.server.plan = [
        web.Response(status=503),
        web.Response(status=429, headers={"Retry-After": "0"}),
        web.Response(text="<html>"),
    ]
    asking = asyncio.create_task(model(world.engine()).chat_async(HELLO))
    async with asyncio.timeout(60):
        await world.changed.wait()
    [wait] = world.waits.to_proto()
    assert (wait.waits_for, wait.reason) == (
        "external model",
        "to answer as `their-model`: HTTP 503",
    )
    [answer] = await asking
    assert answer.response_text == "HËLLO"
    assert len(world.server.requests) == 4
    assert world.waits.to_proto() == []


async def test_an_answer_is_utf_8_in_whatever_charset_it_says(world: World) -> None:
    """Decoding 3 MB of punycode would stop the explorer for many minutes."""
    said = "a" * 1_500_000 + "-" + "b" * 1_500_000
    body = json.dumps({"choices": [{"message": {"content": said}, "finish_reason": "stop"}]})
    strange = {"Content-Type": "application/json; charset=punycode"}
    world.server.plan = [web.Response(body=body.encode(), headers=strange)]
    (answer,) = await model(world.engine()).chat_async(HELLO)
    assert answer.response_text == said


async def test_an_answer_that_is_too_large_is_not_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "MAX_ANSWER_BYTES", 1000)
    world.server.plan = [web.Response(body=b"a" * 1001)]
    (answer,) = await model(world.engine()).chat_async(HELLO)  # it is asked again
    assert answer.response_text == HELLO[-1]["content"].upper()


async def test_a_server_that_stays_away_fails_the_stage_with_a_sentence(world: World) -> None:
    engine = world.engine(IMPATIENT, address="http://127.0.0.1:9/v1")
    with pytest.raises(RolloutStageFailed, match=r"external model to answer as `their-model`"):
        await model(engine).chat_async(HELLO)
    with pytest.raises(RolloutStageFailed):
        await engine.check()
    with pytest.raises(RolloutStageFailed):
        await model(engine).chat_async(HELLO)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "THEIR_KEY"), (404, "THEIR_ADDRESS"), (302, "THEIR_ADDRESS")]
)
async def test_what_no_patience_mends_is_told_at_once_without_the_key(
    world: World, status: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    world.server.always = status
    engine = world.engine()
    with (
        hushed(caplog),
        pytest.raises(RolloutStageFailed, match=f"HTTP {status}.*{said}") as raised,
    ):
        await model(engine).chat_async(HELLO)
    assert KEY not in str(raised.value)
    with pytest.raises(RolloutStageFailed):
        await engine.check()


async def test_a_request_that_is_not_taken_fails_its_run_alone(world: World) -> None:
    world.server.always = 400
    engine = world.engine()
    with pytest.raises(UserError, match=r"HTTP 400\): no: Bearer \*\*\*"):
        await model(engine).chat_async(HELLO)
    await engine.check()
    world.server.always = None
    assert await model(engine).chat_async(HELLO)


def test_a_variable_that_is_missing_is_named_and_a_key_is_never_shown() -> None:
    with pytest.raises(UserError, match="THEIR_KEY, which holds the key"):
        read_external_access(SOURCE, {"THEIR_ADDRESS": "http://127.0.0.1:1/v1"})
    with pytest.raises(UserError, match="THEIR_ADDRESS holds no address"):
        read_external_access(SOURCE, {"THEIR_ADDRESS": "127.0.0.1:1", "THEIR_KEY": KEY})
    found = read_external_access(
        SOURCE, {"THEIR_ADDRESS": "http://127.0.0.1:1/v1/", "THEIR_KEY": KEY}
    )
    assert KEY not in repr(found)
    assert found.address == "http://127.0.0.1:1/v1"
