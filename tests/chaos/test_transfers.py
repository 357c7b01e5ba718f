"""Weights from memory to memory, while either end of the transfer is killed."""

from collections.abc import Sequence

import pytest

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.journals import LOADS
from tests.chaos.shared_arena import ON_IT
from tests.support.model_free.experiment import experiment_plan, final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

pytestmark = [ON_IT, pytest.mark.timeout(900)]

END_SECONDS = 400.0


async def ended(arena: Arena, name: str, points: Sequence[str] = ()) -> str:
    """Weights that a run ended with in which a process died at each point."""
    num_before = len(list(arena.folder.read(DEATHS)))
    for point in points:
        arena.folder.arm(point)
    plan = experiment_plan(arena.root / name, name=name, synchronizer={"sync_method": "nccl"})
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    assert findings(arena.snapshot(experiment, final_weights(experiment))) == {}
    return final_weights(experiment)


def num_loads(arena: Arena) -> int:
    """Of files, into the engine."""
    return len(list(arena.folder.read(LOADS)))


@pytest.mark.thorough
async def test_weights_from_memory_are_those_of_files_whoever_dies_in_a_transfer(
    arena: Arena, calm_weights: str
) -> None:
    points = ("rank.transfer-begun", "explorer.transfer-granted", "rank.transfer-ended")
    before = num_loads(arena)
    assert await ended(arena, "transfers-calm") == calm_weights
    assert num_loads(arena) == before
    assert await ended(arena, "transfers-disturbed", points) == calm_weights
    assert num_loads(arena) > before, "the files stood in where the trainer had died"
