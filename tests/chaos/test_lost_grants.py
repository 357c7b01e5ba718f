"""The buffer dies between the commit of a lease and its answer."""

from pathlib import Path

from tests.chaos.arena import arena_in
from tests.chaos.crash import DEATHS
from tests.support.model_free.experiment import final_weights
from trinity.api.v1 import synchronizer_pb2 as pb

POINT = "buffer.lease-granted"
NEVER_OVER = {"TRINITY_EXPLORER_LEASE_SECONDS": "86400"}


async def test_the_work_of_a_lost_grant_does_not_wait_for_its_lease_to_end(tmp_path: Path) -> None:
    async with arena_in(tmp_path, explorer=NEVER_OVER) as arena:
        expected = await arena.undisturbed(num_steps=3)
        arena.folder.arm(POINT)
        ended = await arena.run("killed", num_steps=3)
        assert [death["point"] for death in arena.folder.read(DEATHS)] == [POINT]
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    assert final_weights(ended) == expected
