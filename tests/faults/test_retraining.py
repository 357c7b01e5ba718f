"""A retraining whose buffer dies in the midst takes the same batches, to the same weights."""

from pathlib import Path

import pytest

from tests.faults.arena import arena_in
from tests.faults.crash import DEATHS
from tests.faults.retrained import differences, retrain
from tests.model_free.experiment import final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 4
DIES = ("buffer.batch-copied", "rank.step-reported")
pytestmark = pytest.mark.timeout(300)


async def test_stored_batches_are_taken_as_they_are_through_deaths(tmp_path: Path) -> None:
    async with arena_in(tmp_path) as arena:
        source = await arena.run("source", num_steps=NUM_STEPS, buffer={"keep_steps": None})
        for point in DIES:
            arena.folder.arm(point)
        again = await retrain(arena, source, "again", num_steps=NUM_STEPS)
        assert again.state == pb.EXPERIMENT_STATE_FINISHED, again.reason
        assert len(list(arena.folder.read(DEATHS))) == len(DIES)
        assert differences(arena, source, again) == []
        assert final_weights(again) == final_weights(source)
        arena.folder.switch_off("stored-order")
        other = await retrain(arena, source, "other", num_steps=NUM_STEPS)
        assert differences(arena, source, other), "the control: batches were taken in any order"
        assert final_weights(other) != final_weights(source)
