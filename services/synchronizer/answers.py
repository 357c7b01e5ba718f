"""Answers of the synchronizer with lists, each below the limit of a message."""

from collections.abc import Sequence

from services.synchronizer import wire
from services.synchronizer.domain import Experiment, PublishedVersion
from services.synchronizer.members import Member
from services.synchronizer.operations import ExperimentUpdate, SystemState
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.rpc.answers import ANSWER_BYTES, ITEM_BYTES, fair_within, first_within
from trinity.rpc.bounds import clip_text

SHORT_TEXT_BYTES = 200


def status_response(state: SystemState, max_bytes: int = ANSWER_BYTES) -> pb.GetStatusResponse:
    """Returns experiments and members; none of them can hide the others.

    Experiments have half of the room at most, waits that ended an eighth. Members share the rest:
    those that say more than their share are shortened.
    """
    all_experiments = [wire.experiment_to_proto(experiment) for experiment in state.experiments]
    experiments = fair_within(all_experiments, lambda experiment: experiment.tenant, max_bytes // 2)
    closed = _closed_waits(state, max_bytes // 8)
    used = sum(message.ByteSize() + ITEM_BYTES for message in (*experiments, *closed))
    members = _members(state.members, max_bytes - used)
    return pb.GetStatusResponse(
        experiments=experiments,
        members=members,
        closed_waits=closed,
        num_experiments_left_out=len(all_experiments) - len(experiments),
        num_members_left_out=len(state.members) - len(members),
    )


def _closed_waits(state: SystemState, max_bytes: int) -> list[pb.ClosedWait]:
    return first_within(map(wire.closed_wait_to_proto, state.closed_waits), max_bytes)


def _members(members: Sequence[Member], max_bytes: int) -> list[pb.Member]:
    if not members:
        return []
    tenants = {str(member.id): member.tenant for member in members}
    messages = [wire.member_to_proto(member) for member in members]
    share = max_bytes // len(messages) - ITEM_BYTES
    if sum(message.ByteSize() + ITEM_BYTES for message in messages) > max_bytes:
        for message in messages:
            shorten(message, share)
    return fair_within(messages, lambda message: tenants[message.id], max_bytes)


def shorten(member: pb.Member, max_bytes: int) -> None:
    """Takes from a member what people need least, until it has at most so many bytes."""
    if member.ByteSize() <= max_bytes:
        return
    member.is_shortened = True
    del member.pinned_versions[:]
    while member.waits and member.ByteSize() > max_bytes:
        del member.waits[-1]
    if member.ByteSize() > max_bytes:
        member.activity = clip_text(member.activity, SHORT_TEXT_BYTES)
        member.address = clip_text(member.address, SHORT_TEXT_BYTES)


def experiments_response(running: Sequence[Experiment]) -> pb.WatchExperimentsResponse:
    """Returns running experiments, of each tenant as many as of others."""
    messages = [wire.experiment_to_proto(experiment) for experiment in running]
    experiments = fair_within(messages, lambda experiment: experiment.tenant)
    return pb.WatchExperimentsResponse(
        experiments=experiments, num_experiments_left_out=len(messages) - len(experiments)
    )


def experiment_response(
    update: ExperimentUpdate, *, for_workers: bool
) -> pb.WatchExperimentResponse:
    """Returns an experiment with its newest versions, oldest first, half of them lost at most."""
    experiment = wire.experiment_to_proto(update.experiment)
    room = ANSWER_BYTES - experiment.ByteSize()
    lost = _newest(update.lost, room // 2, for_workers=for_workers)
    room -= sum(version.ByteSize() + ITEM_BYTES for version in lost)
    versions = _newest(update.versions, room, for_workers=for_workers)
    num_known = len(update.versions) + len(update.lost)
    return pb.WatchExperimentResponse(
        experiment=experiment,
        versions=versions,
        lost_versions=lost,
        num_versions_left_out=num_known - len(versions) - len(lost),
    )


def _newest(
    versions: Sequence[PublishedVersion], max_bytes: int, *, for_workers: bool
) -> list[pb.Version]:
    newest_first = (
        wire.version_to_proto(version, for_workers=for_workers) for version in reversed(versions)
    )
    return first_within(newest_first, max_bytes)[::-1]
