"""Models that others serve are reached anew for each stage, with what that stage says of them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.explorer import engines
from services.explorer.engine.external import ByteTokenizer
from services.explorer.engine.interface import EngineOptions
from services.explorer.engines import EngineManager, LoadedStageModels
from tests.support.chat_server import KEY, ChatServer
from tests.support.model_free.engine import CharacterTokenizer
from tests.unit.explorer.builders import ArithmeticEngine, build_plan
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import RolloutStageFailed, UserError
from trinity.runtime.presence import WaitRegistry
from trinity.types import JsonObject, SamplingParams
from trinity.workflows.generation import ModelLimits
from trinity.workflows.messages import Message
from trinity.workflows.model import ModelWrapper

JUDGE: JsonObject = {
    "name": "judge",
    "engine_type": "external",
    "external_model_config": {
        "model_name": "their-model",
        "base_url_env": "THEIR_ADDRESS",
        "api_key_env": "THEIR_KEY",
    },
}
HELLO = [Message(role="user", content="hello")]


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ChatServer]:
    monkeypatch.setattr(engines, "_load_tokenizer", lambda _: CharacterTokenizer())
    for name in ("THEIR_ADDRESS", "THEIR_KEY"):
        monkeypatch.delenv(name, raising=False)
    async with ChatServer().serving() as server:
        yield server


class Started:
    """The engines of the policy."""

    def __init__(self) -> None:
        self.policies: list[ArithmeticEngine] = []
        self.engines = EngineManager(
            start=self._start, waits=WaitRegistry(owner="explorer", on_change=lambda: None)
        )

    async def _start(self, _: EngineOptions) -> ArithmeticEngine:
        self.policies.append(ArithmeticEngine())
        return self.policies[-1]


@pytest.fixture
async def started(server: ChatServer) -> AsyncIterator[Started]:  # noqa: ARG001 tokenizers
    started = Started()
    yield started
    await started.engines.close_engines()


def judged(folder: Path, **variables: str) -> StagePlan:
    """A stage with such a judge, and these variables."""
    explorer: JsonObject = {"auxiliary_models": [JUDGE], "env_vars": dict(variables)}
    [stage] = build_plan(folder, explorer=explorer).stages
    return stage


async def ask(running: LoadedStageModels) -> str:
    judge = ModelWrapper(
        generator=running.auxiliary[0].engine,
        tokenizer=ByteTokenizer(),
        limits=ModelLimits.unknown(),
        sampling=SamplingParams(),
        weights=(0, 0),
        seed_of_call=lambda call: call,
    )
    [answer] = await judge.chat_async(HELLO)
    return answer.response_text


async def test_a_model_that_was_given_up_is_asked_again_by_the_next_stage(
    tmp_path: Path, server: ChatServer, started: Started
) -> None:
    stage = judged(tmp_path, THEIR_ADDRESS=server.address, THEIR_KEY=KEY)
    server.always = 401
    before = await started.engines.ensure(stage)
    with pytest.raises(RolloutStageFailed, match="HTTP 401"):
        await ask(before)
    server.always = None
    running = await started.engines.ensure(stage)
    assert await ask(running) == "HELLO"
    assert (len(started.policies), running.loader) == (1, before.loader), "it goes on"


async def test_a_stage_with_another_key_sends_that_one(
    tmp_path: Path, server: ChatServer, started: Started
) -> None:
    for key in ("one", "other"):
        stage = judged(tmp_path, THEIR_ADDRESS=server.address, THEIR_KEY=key)
        await ask(await started.engines.ensure(stage))
    assert server.keys == ["Bearer one", "Bearer other"]


async def test_a_stage_that_gives_no_key_has_not_that_of_the_one_before(
    tmp_path: Path, server: ChatServer, started: Started
) -> None:
    stage = judged(tmp_path, THEIR_ADDRESS=server.address, THEIR_KEY=KEY)
    await started.engines.ensure(stage)
    with pytest.raises(UserError, match="THEIR_ADDRESS, which holds the address"):
        await started.engines.ensure(judged(tmp_path))
    assert await ask(await started.engines.ensure(stage)) == "HELLO"
