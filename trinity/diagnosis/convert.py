"""Converts the services' answers into a snapshot."""

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.diagnosis.snapshot import (
    Experiment,
    Member,
    Part,
    Snapshot,
    StageWork,
    Wait,
)


def snapshot(
    parts: tuple[Part, ...],
    status: synchronizer_pb2.GetStatusResponse | str,
    work: buffer_pb2.GetBufferStatusResponse | str,
) -> Snapshot:
    """Builds the snapshot; a text in place of an answer is the reason why it is missing."""
    complaints = [answer for answer in (status, work) if isinstance(answer, str)]
    if isinstance(status, str):
        return Snapshot(parts=parts, complaint=complaints[0])
    return Snapshot(
        parts=parts,
        members=tuple(map(_member, status.members)),
        experiments=tuple(map(_experiment, status.experiments)),
        work=None if isinstance(work, str) else tuple(map(_work, work.stages)),
        complaint=complaints[0] if complaints else "",
    )


def _member(message: synchronizer_pb2.Member) -> Member:
    return Member(
        role=_word(synchronizer_pb2.Role.Name(message.role)),
        activity=message.activity,
        address=message.address,
        experiment_id=message.experiment_id,
        stage=message.stage,
        silent_seconds=message.silent_seconds,
        waits=tuple(
            Wait(
                owner=wait.owner,
                waits_for=wait.waits_for,
                reason=wait.reason,
                waited_seconds=wait.waited_seconds,
                deadline_seconds=wait.deadline_seconds,
            )
            for wait in message.waits
        ),
    )


def _experiment(message: synchronizer_pb2.Experiment) -> Experiment:
    running = [
        stage for stage in message.stages if stage.state == synchronizer_pb2.STAGE_STATE_RUNNING
    ]
    roles = [
        _word(synchronizer_pb2.Role.Name(role))
        for stage in running[:1]
        for role in stage.roles
        if role not in stage.finished_roles
    ]
    return Experiment(
        id=message.id,
        label=message.label,
        state=_word(synchronizer_pb2.ExperimentState.Name(message.state)),
        reason=message.reason,
        stage=running[0].name if running else "",
        roles=tuple(roles),
    )


def _work(message: buffer_pb2.StageStatus) -> StageWork:
    return StageWork(
        experiment_id=message.key.experiment_id,
        stage=message.key.stage,
        num_pending=message.num_pending,
        num_leased=message.num_leased,
        trained_step=message.trained_step,
        total_steps=message.total_train_steps,
        step_age_seconds=message.step_age_seconds,
        step_seconds=message.step_seconds,
        num_recent_runs=message.num_recent_runs,
        num_recent_lost=message.num_recent_lost,
        recent_loss=message.recent_loss,
        refill_round=message.refill_round,
    )


def _word(constant: str) -> str:
    """Converts `EXPERIMENT_STATE_RUNNING` to `running`."""
    return constant.rpartition("_")[2].lower()
