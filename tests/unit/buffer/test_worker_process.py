"""The process of users' functions can be ended, whatever they have started."""

import asyncio

import psutil
import pytest

from services.buffer.tenants import SHARES_ALL
from services.buffer.workers.process import TenantWorkers
from trinity.runtime.process.box import OPEN_BOX, box_refusal
from trinity.runtime.process.worker import WorkerFailed

MODULE = "tests.unit.buffer.leaves_a_child"
IN_THE_GROUP, IN_ANOTHER = 0, 1
"""The worker's one argument, which says where its child goes."""


def children() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline"])
    return [one for one in found if MODULE in (one.info["cmdline"] or [])]


@pytest.mark.parametrize("where", [IN_THE_GROUP, IN_ANOTHER])
async def test_a_child_that_holds_its_pipes_holds_nobody_up(where: int) -> None:
    workers = TenantWorkers(MODULE, where, lambda _: SHARES_ALL)
    async with asyncio.timeout(20):
        with pytest.raises(WorkerFailed, match="did not answer within 2 s"):
            await workers.ask("a", {}, limit_seconds=2.0)
    assert not workers.is_running("a")
    if not box_refusal(OPEN_BOX):  # its end is the end of all its processes, in the kernel's time
        psutil.wait_procs(children(), timeout=60)
        where = 0
    left = children()
    for one in left:
        one.kill()
    assert len(left) == where
