"""How a stage ends on a rank, by what the buffer answers."""

import asyncio
import gc
import io
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from services.trainer.control.jobs import StageStartKey, StageWatcher
from services.trainer.messages import EVENTS, Event, RankStageEnded, RankWaiting
from services.trainer.rank.link import RankLink
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import STEPS, peers_of, plan_in
from trinity.api.v1 import buffer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import InvalidRequest, NotFound, PreconditionFailed, RpcError
from trinity.runtime import retry
from trinity.runtime.rpc.channel import open_channel

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks

STAGE = "rft"


@pytest.fixture
def peers(tmp_path: Path, model: Path) -> Peers:
    return peers_in(tmp_path, model)


def peers_in(folder: Path, model: Path) -> Peers:
    """At the stage that trains on rollouts."""
    peers = peers_of(plan_in(folder, model), vocabulary=48)
    peers.load_former_run(STAGE)
    return peers


class Link:
    """A rank's link to a service that only listens."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self._events = os.fdopen(reading, "rb")
        self._writing = os.fdopen(writing, "wb")
        self.rank = RankLink(orders=io.BytesIO(), events_descriptor=writing)

    def said(self) -> list[Event]:
        """All that the rank said, once it is done."""
        self._writing.close()
        return [EVENTS.validate_json(line) for line in self._events]

    def close(self) -> None:
        """Both ends."""
        self._writing.close()
        self._events.close()


@pytest.fixture
def link() -> Iterator[Link]:
    link = Link()
    yield link
    link.close()


@asynccontextmanager
async def stage_of(
    peers: Peers, ranks: "Ranks", link: Link
) -> AsyncIterator[asyncio.Task[RankStageEnded]]:
    """The stage on this process as its only rank."""
    from services.trainer.rank.model_parts import load_model_parts
    from services.trainer.rank.stage import run_stage

    async with serve_peers(peers) as address, open_channel(address) as channel:
        board = StageWatcher(SynchronizerServiceStub(channel))
        key = StageStartKey(peers.experiment.id, STAGE, 1)
        trainer = "00000000-0000-0000-0000-000000000001"
        job = await board.load_job(key, trainer_id=trainer, buffer=address, synchronizer=address)
        running = asyncio.to_thread(
            run_stage, job.order, ranks=ranks, link=link.rank, parts=load_model_parts()
        )
        yield asyncio.create_task(running)


async def test_a_stage_that_the_buffer_ended_is_cancelled_with_its_reason(
    peers: Peers, ranks: "Ranks", link: Link
) -> None:
    peers.stages[STAGE].cancelled = "every task failed"
    async with stage_of(peers, ranks, link) as ending:
        assert await ending == RankStageEnded(outcome="cancelled", reason="every task failed")


async def test_a_rank_that_a_newer_incarnation_replaced_is_superseded(
    peers: Peers, ranks: "Ranks", link: Link
) -> None:
    stage = peers.stages[STAGE]

    def supersede(step: int) -> list[buffer_pb2.BatchRow]:
        stage.incarnation += step == 2
        return peers_of(peers.plan, vocabulary=48).stages[STAGE].rows_of(step)

    stage.rows_of = supersede
    async with stage_of(peers, ranks, link) as ending:
        assert await ending == RankStageEnded(
            outcome="superseded", reason="a newer incarnation exists"
        )


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.FAILED_PRECONDITION, PreconditionFailed),
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequest),
        (grpc.StatusCode.NOT_FOUND, NotFound),
    ],
)
async def test_a_stage_that_the_buffer_refuses_to_open_is_a_failure_not_an_end(
    peers: Peers, ranks: "Ranks", link: Link, code: grpc.StatusCode, error: type[RpcError]
) -> None:
    peers.stages[STAGE].refusal = code
    async with stage_of(peers, ranks, link) as ending:
        with pytest.raises(error, match=r"the buffer refused: /data/tasks\.jsonl is not there"):
            await ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A stage that was trained to its end."""

    peers: Peers
    said: list[Event]
    num_frozen: list[int]
    """Objects that collections pass over, at each batch and after the stage."""


@pytest.fixture(scope="module")
def finished(model: Path, ranks: "Ranks", tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """One whose data had to be read first."""
    peers, link = peers_in(tmp_path_factory.mktemp("finished"), model), Link()
    stage, num_frozen = peers.stages[STAGE], []
    stage.num_readings = 3
    usual = stage.rows_of

    def watched(step: int) -> list[buffer_pb2.BatchRow]:
        num_frozen.append(gc.get_freeze_count())
        return usual(step)

    async def train() -> None:
        async with stage_of(peers, ranks, link) as ending:
            assert await ending == RankStageEnded(outcome="finished")

    stage.rows_of = watched
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retry, "ASK_AGAIN_SECONDS", 0.0)
        asyncio.run(train())
    num_frozen.append(gc.get_freeze_count())
    said = link.said()
    link.close()
    return Finished(peers=peers, said=said, num_frozen=num_frozen)


def test_a_stage_is_opened_once_its_data_is_read_and_says_so_meanwhile(finished: Finished) -> None:
    waits = [event for event in finished.said if isinstance(event, RankWaiting)]
    assert [wait.reason for wait in waits[:4]] == ["tasks is being read"] * 3 + [""]
    assert finished.peers.stages[STAGE].finished_step == STEPS


def test_each_version_names_the_one_it_was_trained_from(finished: Finished) -> None:
    parents = {version.version: version.parent_version for version in finished.peers.published}
    assert parents == {0: -1, 2: 0, 4: 2, 6: 4}
    assert finished.peers.experiment.stages[1].final_version.parent_version == 4


def test_collections_of_garbage_pass_over_the_libraries_only_while_it_trains(
    finished: Finished,
) -> None:
    """A walk over verl takes longer than a small step; after a stage its model must go."""
    *while_training, after = finished.num_frozen
    assert min(while_training) > 100_000
    assert after == 0
