"""With a protection switched off, the check that watches it finds something; else nothing.

All on one stack, an experiment each: only the switches, and who dies where, differ.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
import pytest
import pytest_asyncio

from tests.chaos.arena import Arena, arena_in
from tests.chaos.checks import findings
from tests.chaos.controls import CONTROLS, NUM_STEPS, Control
from tests.chaos.crash import DEATHS
from tests.chaos.zombie import Zombie
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.runtime.rpc.channel import open_channel

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.thorough]


@dataclass(frozen=True, slots=True)
class Range:
    """The stack, and what an experiment ends with on it when nobody disturbs."""

    arena: Arena
    expected: str
    expected_of_visited: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shooting(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Range]:
    root = tmp_path_factory.mktemp("controls")
    async with arena_in(root) as arena:
        yield Range(
            arena,
            await arena.undisturbed(num_steps=NUM_STEPS),
            await arena.undisturbed(num_steps=NUM_STEPS, visited=True),
        )


async def test_with_all_protections_nothing_is_found(shooting: Range) -> None:
    arena = shooting.arena
    arena.folder.arm("rank.step-reported")
    running = asyncio.create_task(arena.run("protected", num_steps=NUM_STEPS))
    taken = await _haunt(arena)
    ended = await running
    assert taken == []
    assert findings(arena.snapshot(ended, shooting.expected)) == {}


async def test_with_all_protections_nothing_is_found_of_a_visit(shooting: Range) -> None:
    arena = shooting.arena
    ended = await arena.run("visited", num_steps=NUM_STEPS, visited=True)
    snapshot = arena.snapshot(ended, shooting.expected_of_visited)
    assert findings(snapshot) == {}
    visit = snapshot.visit
    assert visit.rewarded and visit.excluded and visit.deleted and visit.overdue
    assert any(one.told_rows > 0 for one in visit.tasksets)
    for point in ("buffer.overdue-left-out", "buffer.abandoned-deleted"):
        assert arena.folder.times_reached(point)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda one: "-".join(one.off))
async def test_without_its_protection_each_check_finds_something(
    shooting: Range, control: Control
) -> None:
    arena = shooting.arena
    known = len(list(arena.folder.read(DEATHS)))
    if control.drops:
        _drop(arena, control.drops)
    for off in control.off:
        arena.folder.switch_off(off)
    if control.dies:
        arena.folder.arm(control.dies)
    try:
        name = "-".join(control.off)
        running = asyncio.create_task(
            arena.run(
                name,
                num_steps=control.num_steps,
                visited=control.visited,
                measured=control.measured,
                buffer={"keep_steps": None} if control.keeps_all else None,
            )
        )
        if control.zombie:
            assert await _haunt(arena), "the zombie was refused, though nobody asks who it is"
        ended = await running
    finally:
        for off in control.off:
            arena.folder.switch_on(off)
    found = findings(arena.snapshot(ended, shooting.expected))
    assert len(list(arena.folder.read(DEATHS))) - known == bool(control.dies)
    assert {*control.checks} <= found.keys()


def _drop(arena: Arena, constraint: str) -> None:
    with psycopg.connect(arena.secret("buffer-postgres-dsn"), autocommit=True) as connection:
        connection.execute(f"DROP INDEX IF EXISTS {constraint}")


async def _haunt(arena: Arena) -> list[str]:
    """Speak as the first life, once a second has published; answers what is taken."""
    at = arena.stack.addresses
    experiment = await _with_second_life(at.synchronizer)
    zombie = Zombie(experiment=experiment, incarnation=1)
    return [*await zombie.commit_at(at.buffer), *await zombie.publish_at(at.synchronizer)]


async def _with_second_life(synchronizer: str) -> pb.Experiment:
    """The one experiment that runs, once two lives of its trainer have published."""
    async with asyncio.timeout(30), open_channel(synchronizer) as channel:
        stub = SynchronizerServiceStub(channel)
        async for running in stub.WatchExperiments(pb.WatchExperimentsRequest()):
            if running.experiments:
                break
        request = pb.WatchExperimentRequest(experiment_id=running.experiments[0].id)
        async for now in stub.WatchExperiment(request):
            if any(version.incarnation > 1 for version in now.versions):
                break
        found: pb.Experiment = now.experiment
        return found
