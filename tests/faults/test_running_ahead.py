"""Where rollouts run ahead, weights and reports go out beside the next step: what holds if it dies.

Which weights a run gets depends on timing then: no two runs end in the same ones; all else holds.
"""

from pathlib import Path

from tests.faults.arena import arena_in
from tests.faults.checks import findings
from tests.faults.crash import DEATHS
from tests.model_free.experiment import final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 6
POINTS = (
    "rank.step-trained",
    "rank.weights-unsealed",
    "rank.weights-announced",
    "rank.version-recorded",
    "rank.step-reported",
)


async def test_a_rank_may_die_anywhere_beside_its_next_step(tmp_path: Path) -> None:
    async with arena_in(tmp_path) as arena:
        for number, point in enumerate(POINTS, start=1):
            arena.folder.arm(point)
            ended = await arena.run(point.replace(".", "-"), num_steps=NUM_STEPS, sync_offset=1)
            assert ended.state == pb.EXPERIMENT_STATE_FINISHED, (point, ended.reason)
            assert len(list(arena.folder.read(DEATHS))) == number, point
            snapshot = arena.snapshot(ended, final_weights(ended))
            assert findings(snapshot) == {}, point
            assert {one.version for one in snapshot.recorded} == set(range(NUM_STEPS + 1)), point
