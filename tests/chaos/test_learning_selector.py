"""A buffer that dies while its selector learns draws the tasks that it would have drawn."""

import pytest

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 4
POINTS = ("buffer.feedback-heard", "buffer.tasks-drawn", "buffer.batch-recorded")

pytestmark = [ON_IT, pytest.mark.timeout(600), pytest.mark.thorough]


async def test_the_weights_are_those_of_a_buffer_that_never_died(arena: Arena) -> None:
    expected = await arena.undisturbed(num_steps=NUM_STEPS)
    known = len(list(arena.folder.read(DEATHS)))
    for point in POINTS:
        arena.folder.arm(point)
    ended = await arena.run("learning-struck", num_steps=NUM_STEPS)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert {death["point"] for death in list(arena.folder.read(DEATHS))[known:]} == {*POINTS}
    assert findings(arena.snapshot(ended, expected)) == {}
