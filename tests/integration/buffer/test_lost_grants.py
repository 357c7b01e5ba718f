"""Grants whose answer never reached the explorer: what it does not name as held is free again."""

import asyncio
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2 as pb

Lease = pb.LeaseAssignmentsResponse


@pytest.fixture
async def opened(buffer: Buffer, tmp_path: Path) -> Buffer:
    """With three assignments to lease."""
    await buffer.open(rollout_plan(tmp_path))
    await buffer.begin()
    await buffer.record(0)
    return buffer


async def test_a_grant_that_never_arrived_is_made_again_at_once(opened: Buffer) -> None:
    lost = (await opened.lease()).assignments
    again = await opened.lease(wait_seconds=0, held=[])
    assert [one.id for one in again.assignments] == [one.id for one in lost]
    assert not {one.lease_token for one in again.assignments} & {one.lease_token for one in lost}


async def test_what_is_held_stays_held(opened: Buffer) -> None:
    [kept] = (await opened.lease(1)).assignments
    lost = (await opened.lease(1)).assignments
    granted = (await opened.lease(wait_seconds=0, held=[kept])).assignments
    assert kept.id not in {one.id for one in granted}
    assert {one.id for one in lost} < {one.id for one in granted}
    assert list((await opened.renew(kept)).lost_assignment_ids) == []


async def test_an_older_lease_of_the_same_work_is_not_the_one_that_was_granted_last(
    opened: Buffer,
) -> None:
    [old] = (await opened.lease(1, lease_seconds=0.01)).assignments
    await asyncio.sleep(0.02)  # it runs out
    lost = (await opened.lease()).assignments
    assert old.id in {one.id for one in lost}
    again = (await opened.lease(wait_seconds=0, held=[old])).assignments
    assert {one.id for one in again} == {one.id for one in lost}
    assert list((await opened.renew(old)).lost_assignment_ids) == [old.id]


async def test_what_was_lost_and_is_not_wanted_goes_to_another(opened: Buffer) -> None:
    """The other one already waits for it."""
    lost = (await opened.lease()).assignments
    other = opened.another_explorer()
    assert (await other.lease(wait_seconds=0)).state == Lease.STATE_WAITING
    again = (await opened.lease(1, wait_seconds=0, held=[])).assignments
    theirs = (await other.lease(wait_seconds=0)).assignments
    assert {one.id for one in (*again, *theirs)} == {one.id for one in lost}


async def test_leases_of_others_are_not_touched(opened: Buffer) -> None:
    other = opened.another_explorer()
    [theirs] = (await other.lease(1)).assignments
    granted = (await opened.lease(wait_seconds=0, held=[])).assignments
    assert theirs.id not in {one.id for one in granted}
    assert list((await other.renew(theirs)).lost_assignment_ids) == []


async def test_who_does_not_say_what_it_holds_keeps_it_until_it_expires(opened: Buffer) -> None:
    await opened.lease()
    assert (await opened.lease(wait_seconds=0)).state == Lease.STATE_WAITING


async def test_results_of_a_lease_that_was_given_anew_count(opened: Buffer) -> None:
    """They may have been on the stream already when the explorer asked."""
    first, *_ = (await opened.lease()).assignments
    again, *_ = (await opened.lease(wait_seconds=0, held=[])).assignments
    [early] = await opened.settle(opened.complete(first, 0))
    assert early.state == pb.CommitReport.STATE_COMMITTED
    [repeated] = await opened.settle(opened.complete(again, 0))
    assert repeated.state == pb.CommitReport.STATE_SUPERSEDED


async def test_what_is_no_lease_is_refused(opened: Buffer) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="lease_token 'x' is not a UUID"):
        await opened.lease(held=[pb.Assignment(id=opened.explorer_id, lease_token="x")])
