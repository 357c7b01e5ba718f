"""A stage is opened with its environment, and within the time that it may take."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.clients.synchronizer import ExplorerSynchronizerClient, WatchedExperiment
from services.explorer.clients.watch_feed import WatchFeed
from services.explorer.control.stage import RolloutStageFactory, StageJob, user_message
from services.explorer.delivery.outbox import Outbox
from services.explorer.engine.interface import EngineDied, EngineOwnDevice, EngineTurns
from services.explorer.engine.weight_transfer import WeightLoader
from services.explorer.engines import LoadedModel, LoadedStageModels
from services.explorer.settings import ExplorerSettings
from services.explorer.telemetry import RolloutCounters
from tests.unit.explorer.builders import (
    KEY,
    ArithmeticEngine,
    CharacterTokenizer,
    build_plan,
    unheard_beats,
)
from tests.unit.explorer.runs import taskset
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import NotFound, RolloutStageFailed, UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import RewardFn
from trinity.runtime.retry import RetryPolicy
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.threads import DaemonThreads
from trinity.types import StageKey

VARIABLE = "TRINITY_TEST_OF_A_STAGE"


class NotingBuffer(ExplorerBufferClient):
    """Says what a stage's workflows would see while it is opened."""

    seen: str | None = None

    async def open_stage(self, key: StageKey, plan_json: str, seed: int) -> None:
        self.seen = os.environ.get(VARIABLE)


@asynccontextmanager
async def opened(stage: StagePlan, turns: EngineTurns | None = None) -> AsyncIterator[NotingBuffer]:
    """The buffer that the stage was opened in."""
    engine = ArithmeticEngine()
    policy = LoadedModel(engine=engine, replicas=(engine,), tokenizer=CharacterTokenizer())
    models = LoadedStageModels(policy=policy, loader=WeightLoader(engine))
    async with unheard_beats() as heartbeats, open_channel("127.0.0.1:9") as channel:
        buffer = NotingBuffer(channel, "me")
        setup = RolloutStageFactory(
            settings=ExplorerSettings(
                synchronizer="a:1", buffer="b:1", nats_url=SecretStr("nats://c:1")
            ),
            buffer=buffer,
            synchronizer=ExplorerSynchronizerClient(channel),
            outbox=Outbox(time.monotonic),
            threads=DaemonThreads(name="workflow", max_threads=1),
            heartbeats=heartbeats,
            counters=RolloutCounters(),
        )
        feed = WatchFeed(
            _nothing, waits_for="", purpose="", retry_policy=RetryPolicy(heartbeats.waits)
        )
        job = StageJob(
            key=KEY, plan=stage, seed=7, models=models, feed=feed, turns=turns or EngineOwnDevice()
        )
        async with setup.open_stage(job):
            yield buffer


async def _nothing() -> AsyncIterator[WatchedExperiment]:
    await asyncio.Event().wait()
    raise AssertionError
    yield


async def test_variables_of_a_stage_are_gone_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    [stage] = build_plan(tmp_path, explorer={"env_vars": {VARIABLE: "set"}}).stages
    async with opened(stage) as buffer:
        assert (buffer.seen, os.environ.get(VARIABLE)) == ("set", "set")
    assert VARIABLE not in os.environ


class AwakeTurns(EngineOwnDevice):
    """The turns of an engine that is awake."""

    has_device = True
    was_given_back = False

    async def give_back(self, *, with_runs: bool = False) -> None:
        self.was_given_back = True


@pytest.mark.parametrize(
    ("error", "is_given_back"),
    [
        (RuntimeError("a run"), True),
        (ExceptionGroup("tasks", [EngineDied("it did not take weights in 60 s")]), False),
    ],
)
async def test_an_engine_that_was_given_up_is_not_waited_for_again(
    tmp_path: Path, error: Exception, is_given_back: bool
) -> None:
    [stage] = build_plan(tmp_path).stages
    turns = AwakeTurns()
    with pytest.raises(type(error)):
        async with opened(stage, turns):
            raise error
    assert turns.was_given_back is is_given_back


class Endless(RewardFn):
    """Waits for a server that does not answer."""

    release = threading.Event()

    def __init__(self) -> None:
        self.release.wait()

    def __call__(self, *, response: str) -> float:
        return float(len(response))


async def test_rewards_that_are_not_made_in_time_fail_the_stage(tmp_path: Path) -> None:
    REWARDS.register("test_endless_making", Endless)
    [stage] = build_plan(
        tmp_path,
        buffer=taskset(default_reward_fn_type="test_endless_making"),
        synchronizer={"sync_timeout": 0.05},
    ).stages
    with pytest.raises(
        RolloutStageFailed, match=r"rewards of stage `main` were not constructed in 0.05 s"
    ):
        async with opened(stage):
            raise AssertionError
    Endless.release.set()


def test_users_see_the_first_error_of_nested_groups_unless_one_is_unexpected() -> None:
    inner = ExceptionGroup("tasks", [UserError("no such reward")])
    assert user_message(ExceptionGroup("tasks", [inner])) == "no such reward"
    assert user_message(NotFound("no such stage")) == "no such stage"
    assert user_message(ExceptionGroup("tasks", [UserError("x"), ZeroDivisionError()])) is None
