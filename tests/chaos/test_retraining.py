"""A retraining whose buffer dies in the midst takes the same batches, to the same weights."""

import pytest

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.retrained import differences, retrain
from tests.chaos.shared_arena import ON_IT
from tests.support.model_free.experiment import final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 4
DIES = ("buffer.batch-copied", "rank.step-reported")
pytestmark = [ON_IT, pytest.mark.timeout(300)]


async def test_stored_batches_are_taken_as_they_are_through_deaths(arena: Arena) -> None:
    source = await arena.run("retrained", num_steps=NUM_STEPS, buffer={"keep_steps": None})
    known = len(list(arena.folder.read(DEATHS)))
    for point in DIES:
        arena.folder.arm(point)
    again = await retrain(arena, source, "retrained-again", num_steps=NUM_STEPS)
    assert again.state == pb.EXPERIMENT_STATE_FINISHED, again.reason
    assert len(list(arena.folder.read(DEATHS))) - known == len(DIES)
    assert differences(arena, source, again) == []
    assert final_weights(again) == final_weights(source)
    arena.folder.switch_off("stored-order")
    try:
        other = await retrain(arena, source, "retrained-other", num_steps=NUM_STEPS)
    finally:
        arena.folder.switch_on("stored-order")
    assert differences(arena, source, other), "the control: batches were taken in any order"
    assert final_weights(other) != final_weights(source)
