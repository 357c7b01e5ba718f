"""Versions that are differences, while the trainer dies with one written and explorers amid one."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.support.model_free.experiment import experiment_plan, final_weights
from tests.support.model_free.model import read_digest
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(900)]

END_SECONDS = 400.0
POINTS = ("rank.delta-written", "explorer.delta-applied")


async def digest_of(arena: Arena, name: str, dtype: str, points: Sequence[str] = ()) -> bytes:
    """Runs with a process killed at each point; returns the digest of its weights."""
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    plan = experiment_plan(arena.root / name, name=name, trainer={"dtype": dtype})
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    assert findings(arena.snapshot(experiment, final_weights(experiment))) == {}
    return read_digest(Path(experiment.stages[-1].final_version.path))


async def test_whoever_dies_over_a_difference_the_weights_are_those_of_whole_files(
    arena: Arena,
) -> None:
    expected = await digest_of(arena, "deltas-none", "float32")
    assert await digest_of(arena, "deltas-disturbed", "bfloat16", POINTS) == expected
