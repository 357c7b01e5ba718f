"""A buffer that dies while its selector learns draws the tasks that it would have drawn."""

from pathlib import Path

import pytest

from tests.faults.arena import arena_in
from tests.faults.checks import findings
from tests.faults.crash import DEATHS
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 4
POINTS = ("buffer.feedback-heard", "buffer.tasks-drawn", "buffer.batch-recorded")

pytestmark = pytest.mark.timeout(600)


async def test_the_weights_are_those_of_a_buffer_that_never_died(tmp_path: Path) -> None:
    async with arena_in(tmp_path) as arena:
        expected = await arena.undisturbed(num_steps=NUM_STEPS)
        for number, point in enumerate(POINTS, start=1):
            arena.folder.arm(point)
            ended = await arena.run(point.replace(".", "-"), num_steps=NUM_STEPS)
            assert ended.state == pb.EXPERIMENT_STATE_FINISHED, (point, ended.reason)
            assert len(list(arena.folder.read(DEATHS))) == number, point
            assert findings(arena.snapshot(ended, expected)) == {}, point
