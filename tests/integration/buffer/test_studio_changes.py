"""Changes that a person makes in Studio: asked twice, and kept with the reason and the person."""

from pathlib import Path

import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.looking import Looking
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import query_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import UserError
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import PLAINTEXT
from trinity.studio.changes import NOT_ALLOWED, Act, Wish, make_change, wish_of
from trinity.studio.connection import OpenRun, System
from trinity.studio.experiences import whole_experience

AWAITING, EXCLUDED = pb.EXPERIENCE_STATE_AWAITING, pb.EXPERIENCE_STATE_EXCLUDED


async def awaiting_two(buffer: Buffer, looking: Looking, tmp_path: Path) -> str:
    """A group of two that wait for their rewards; returns the id of the first."""
    await buffer.open(rollout_plan(tmp_path, await_feedback=True))
    await buffer.begin()
    await buffer.record(0)
    work = (await buffer.lease()).assignments[0]
    await buffer.settle(*(buffer.complete(work, run, Made(reward=None)) for run in (0, 1)))
    await looking.until(2, pb.ExperienceFilter(states=[AWAITING]))
    return (await looking.list())[0].id


def opened(buffer: Buffer, looking: Looking) -> OpenRun:
    """The running buffer as Studio has it open."""
    return OpenRun(
        system=System(buffer="", synchronizer="", security=PLAINTEXT),
        buffer=buffer.stub,
        queries=looking.stub,
        synchronizer=SynchronizerServiceStub(open_channel("127.0.0.1:1")),
        tenant=looking.key.tenant,
        label="run",
        experiment_id=looking.key.experiment_id,
        is_live=True,
    )


def of_one(experience_id: str) -> pb.ExperienceFilter:
    return pb.ExperienceFilter(experience_ids=[experience_id])


async def test_each_change_is_foreseen_made_and_recorded(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    one = await awaiting_two(buffer, looking, tmp_path)
    run, key = opened(buffer, looking), looking.key

    async def would_and_did(act: Act, reason: str, reward: float | None = None) -> tuple[str, str]:
        wish = wish_of(act, of_one(one), reason, reward)
        would = await make_change(run, key, wish, is_dry_run=True, allows_changes=True)
        return would, await make_change(run, key, wish, is_dry_run=False, allows_changes=True)

    assert await would_and_did(Act.EXCLUDE, "a leaked answer") == (
        "1 experience would be excluded from training.",
        "1 experience excluded from training.",
    )
    [listed] = await looking.list(pb.ExperienceFilter(states=[EXCLUDED]))
    assert (listed.id, listed.reason) == (one, "a leaked answer")
    assert await would_and_did(Act.INCLUDE, "  it was\nnone ") == (
        "1 experience would be included again.",
        "1 experience included again.",
    )
    assert await would_and_did(Act.REWARD, "read by hand", 0.5) == (
        "1 experience gets the reward 0.5, if it still waits for one.",
        "1 experience has the reward 0.5 now.",
    )
    would, did = await would_and_did(Act.DELETE, "a private name")
    assert would == "The content of 1 experience would be deleted for good."
    assert did.startswith("The content of 1 experience deleted, ")
    whole = await whole_experience(run, key, one)
    assert [(change.what, change.reason, change.by) for change in whole.changes] == [
        ("deleted", "a private name", "local"),
        ("rewarded", "read by hand", "local"),
        ("included", "it was none", "local"),
        ("excluded", "a leaked answer", "local"),
    ]
    assert all(change.unix_millis > 1_700_000_000_000 for change in whole.changes)
    assert await notices(buffer, looking) == [
        "1 sample was excluded by local: a leaked answer",
        "1 sample was included by local: it was none",
        "1 sample was rewarded by local: read by hand",
        "1 sample was deleted by local: a private name",
    ]


async def notices(buffer: Buffer, looking: Looking) -> list[str]:
    """The notices of the run, in order."""
    events, request = (
        [],
        buffer_pb2.WatchProgressRequest(
            tenant=looking.key.tenant, experiment_id=looking.key.experiment_id
        ),
    )
    async for answer in buffer.stub.WatchProgress(request, timeout=10):
        events += answer.events
        break
    return [event.notice.text for event in events if event.WhichOneof("event") == "notice"]


async def test_looking_at_a_change_changes_nothing(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    one = await awaiting_two(buffer, looking, tmp_path)
    before = await looking.list()
    run = opened(buffer, looking)
    for act in Act:
        wish = wish_of(act, of_one(one), "why", 1.0)
        await make_change(run, looking.key, wish, is_dry_run=True, allows_changes=True)
    assert await looking.list() == before
    assert not (await looking.get(one)).changes
    assert await notices(buffer, looking) == []


async def test_without_the_flag_studio_refuses_each_change(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    one = await awaiting_two(buffer, looking, tmp_path)
    before = await looking.list()
    run = opened(buffer, looking)
    for act in Act:
        wish = wish_of(act, of_one(one), "why", 1.0)
        for is_dry_run in (True, False):
            with pytest.raises(UserError) as refused:
                await make_change(
                    run, looking.key, wish, is_dry_run=is_dry_run, allows_changes=False
                )
            assert str(refused.value) == NOT_ALLOWED
    assert await looking.list() == before


async def test_a_reward_that_came_too_late_says_so(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    one = await awaiting_two(buffer, looking, tmp_path)
    run = opened(buffer, looking)

    async def give(reward: float) -> str:
        wish = Wish(act=Act.REWARD, filter=of_one(one), reason="why", reward=reward)
        return await make_change(run, looking.key, wish, is_dry_run=False, allows_changes=True)

    await give(0.25)
    assert await give(0.25) == "It had this reward already."
    with pytest.raises(UserError, match=r"refused: its reward is 0\.25 already"):
        await give(1.0)
    assert len((await looking.get(one)).changes) == 1


async def test_rewards_that_programs_give_leave_no_record(
    buffer: Buffer, looking: Looking, tmp_path: Path
) -> None:
    """They come by the thousand, and have no reason of their own."""
    one = await awaiting_two(buffer, looking, tmp_path)
    feedback = [pb.Feedback(experience_id=one, reward=1.0)]
    request = pb.GiveFeedbackRequest(key=looking.key, feedback=feedback)
    assert (await looking.stub.GiveFeedback(request, timeout=10)).num_set == 1
    assert not (await looking.get(one)).changes
    assert await notices(buffer, looking) == []
