"""Answers stay below the limit of a message, and no tenant hides the others."""

import uuid

from services.synchronizer.domain import (
    Experiment,
    PlannedStage,
    PublishedVersion,
    Role,
    VersionKind,
)
from services.synchronizer.members import Member, MemberWait
from services.synchronizer.operations import ExperimentUpdate, SystemState
from services.synchronizer.servicer import (
    experiment_response,
    experiments_response,
    shorten,
    status_response,
)
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.rpc.limits import MAX_REQUEST_BYTES


def member(tenant: str = "", num_waits: int = 1, num_pinned: int = 0) -> Member:
    wait = MemberWait(
        owner="explorer",
        waits_for="buffer",
        reason="r" * 1_200,
        waited_seconds=1.0,
        deadline_seconds=0.0,
        kind=0,
        experiment_id="",
    )
    return Member(
        id=uuid.uuid4(),
        role=Role.EXPLORER,
        address="127.0.0.1:5000",
        experiment_id=None,
        stage="rft",
        activity="a" * 1_000,
        version=1,
        pinned_versions=tuple(range(num_pinned)),
        waits=(wait,) * num_waits,
        tenant=tenant,
    )


def experiment(tenant: str, number: int, num_stages: int = 1) -> Experiment:
    stages = tuple(
        PlannedStage(name=f"{stage:0400}", roles=(Role.TRAINER,)) for stage in range(num_stages)
    )
    return Experiment.started(tenant, f"project/run-{number}", stages)


def test_many_members_at_their_bound_are_shortened_and_all_listed() -> None:
    quiet = member(num_waits=0)
    noisy = [member("a", num_waits=6, num_pinned=1_000) for _ in range(1_000)]
    told = status_response(SystemState(experiments=(), members=(*noisy, quiet)))
    assert told.ByteSize() <= MAX_REQUEST_BYTES
    assert len(told.members) == 1_001 and not told.num_members_left_out
    *others, last = told.members
    assert last.id == str(quiet.id) and not last.is_shortened
    assert all(shown.is_shortened and shown.waits for shown in others)


def test_few_members_are_told_whole() -> None:
    """The control: nothing is taken from an answer that fits."""
    members = tuple(member(num_waits=6, num_pinned=1_000) for _ in range(100))
    told = status_response(SystemState(experiments=(experiment("a", 1),), members=members))
    assert [len(shown.waits) for shown in told.members] == [6] * 100
    assert not any(shown.is_shortened for shown in told.members)
    assert not told.num_members_left_out and not told.num_experiments_left_out


def test_a_tenants_members_beyond_count_keep_no_other_tenant_out() -> None:
    flood = [member("a", num_waits=0) for _ in range(19_999)]
    told = status_response(SystemState(experiments=(), members=(*flood, other := member("b"))))
    assert told.ByteSize() <= MAX_REQUEST_BYTES and told.num_members_left_out > 0
    assert told.members[-1].id == str(other.id)


def test_experiments_with_long_stages_leave_room_for_members_and_other_tenants() -> None:
    heavy = [experiment("a", number, num_stages=400) for number in range(40)]
    state = SystemState(experiments=(*heavy, experiment("b", 0)), members=(member(),))
    told = status_response(state)
    assert told.ByteSize() <= MAX_REQUEST_BYTES and len(told.members) == 1
    assert told.experiments[0].id == str(heavy[0].id), "the newest of a tenant stay"
    assert told.experiments[-1].tenant == "b"
    assert len(told.experiments) + told.num_experiments_left_out == 41
    assert told.num_experiments_left_out > 0


def test_running_experiments_of_one_tenant_keep_no_other_tenant_out() -> None:
    heavy = [experiment("a", number, num_stages=400) for number in range(40)]
    told = experiments_response((*heavy, experiment("b", 0)))
    assert told.ByteSize() <= MAX_REQUEST_BYTES
    assert told.experiments[-1].tenant == "b" and told.num_experiments_left_out > 0
    assert len(told.experiments) + told.num_experiments_left_out == 41


def version(number: int) -> PublishedVersion:
    return PublishedVersion(
        stage="rft",
        version=number,
        incarnation=1,
        kind=VersionKind.FULL,
        base_version=0,
        path="/" + "p" * 3_900,
        manifest_sha256=bytes(32),
        weights_sha256=bytes(32),
        parent_version=number - 1,
    )


def test_of_very_many_versions_the_newest_are_told_oldest_first() -> None:
    versions = tuple(version(number) for number in range(2_000))
    update = ExperimentUpdate(experiment=experiment("a", 1), versions=versions)
    told = experiment_response(update, for_workers=True)
    assert told.ByteSize() <= MAX_REQUEST_BYTES and told.num_versions_left_out > 0
    numbers = [shown.version for shown in told.versions]
    assert numbers == list(range(told.num_versions_left_out, 2_000))


def test_lost_versions_leave_room_for_those_that_can_be_loaded() -> None:
    lost = tuple(version(number) for number in range(2_000))
    update = ExperimentUpdate(experiment=experiment("a", 1), versions=(version(2_000),), lost=lost)
    told = experiment_response(update, for_workers=True)
    assert told.ByteSize() <= MAX_REQUEST_BYTES
    assert [shown.version for shown in told.versions] == [2_000]
    assert len(told.lost_versions) + told.num_versions_left_out == 2_000


def test_few_versions_are_told_whole() -> None:
    """The control: nothing is taken from an answer that fits."""
    update = ExperimentUpdate(
        experiment=experiment("a", 1), versions=(version(1), version(2)), lost=(version(0),)
    )
    told = experiment_response(update, for_workers=True)
    assert [shown.version for shown in told.versions] == [1, 2]
    assert len(told.lost_versions) == 1 and not told.num_versions_left_out


def test_a_shortened_member_keeps_its_longest_wait() -> None:
    waits = [pb.Wait(owner="o", waits_for="w", reason=text) for text in ("first", "r" * 900)]
    message = pb.Member(id="x", waits=waits)
    shorten(message, 500)
    assert [wait.reason for wait in message.waits] == ["first"] and message.is_shortened
