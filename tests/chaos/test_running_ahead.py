"""Where rollouts run ahead, weights and reports go out beside the next step: what holds if it dies.

Which weights a run gets depends on timing then: no two runs end in the same ones; all else holds.
"""

from tests.chaos.arena import Arena
from tests.chaos.checks import findings
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.support.model_free.experiment import final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

NUM_STEPS = 6
pytestmark = ON_IT
POINTS = (
    "rank.step-trained",
    "rank.weights-unsealed",
    "rank.weights-announced",
    "rank.version-recorded",
    "rank.step-reported",
)


async def test_a_rank_may_die_anywhere_beside_its_next_step(arena: Arena) -> None:
    known = len(list(arena.folder.read(DEATHS)))
    for point in POINTS:
        arena.folder.arm(point)
    ended = await arena.run("ahead", num_steps=NUM_STEPS, sync_offset=1)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert {death["point"] for death in list(arena.folder.read(DEATHS))[known:]} == {*POINTS}
    snapshot = arena.snapshot(ended, final_weights(ended))
    assert findings(snapshot) == {}
    assert {one.version for one in snapshot.recorded} == set(range(NUM_STEPS + 1))
