"""Versions that come when the explorer asks for one, or when the trainer has one."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.chaos.snapshot import Snapshot
from tests.support.model_free.experiment import experiment_plan, final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(600)]

END_SECONDS = 240.0
NUM_STEPS = 8


async def ended(arena: Arena, style: str, points: Sequence[str]) -> Snapshot:
    """What is on record of a run in which a process died at each point, and nothing was found."""
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    plan = experiment_plan(
        arena.root / style,
        name=style,
        synchronizer={"sync_style": style, "sync_interval": 2},
        trainer={"save_interval": 3},
    )
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    snapshot = arena.snapshot(experiment, final_weights(experiment))
    assert findings(snapshot) == {}
    return snapshot


def versions_by_step(snapshot: Snapshot) -> list[int]:
    """The version that each explore step asks for."""
    asked = {one.explore_step: one.required_version for one in snapshot.assignments}
    return [asked[step] for step in range(1, NUM_STEPS + 1)]


async def test_versions_are_written_when_the_explorer_asks_for_them(arena: Arena) -> None:
    points = ("rank.step-trained", "buffer.version-recorded", "explorer.results-published")
    found = await ended(arena, "explorer_driven", points)
    asked = versions_by_step(found)
    assert asked[0::2] == asked[1::2]
    assert all(old < new for old, new in pairwise(asked[0::2]))
    assert {one.version for one in found.recorded} == {*asked, NUM_STEPS}


async def test_versions_of_the_trainer_are_taken_as_they_come(arena: Arena) -> None:
    found = await ended(arena, "trainer_driven", ("rank.weights-written",))
    assert {one.version for one in found.recorded} == {0, 2, 4, 6, 8}
    asked = versions_by_step(found)
    assert asked == sorted(asked)
    assert set(asked) <= {0, 2, 4, 6}
