"""Answers of `trinity status --json` and `trinity why --json`, and their JSON Schemas.

    python -m trinity.cli.reports docs/schemas       # writes status.json and why.json

Fields are only ever added.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.diagnosis.snapshot import EndedWaitSnapshot, SystemSnapshot
from trinity.run.progress.summary import EvaluationSummary, RunSummary
from trinity.run.progress.view import change_text


class Report(BaseModel):
    """Base of what is printed as JSON."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class EndedWaitReport(Report):
    """One wait of a part that has ended."""

    role: str
    """`explorer`, `trainer` or `buffer`: the process that waited."""
    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    ended_seconds_ago: float
    stage: str


class WhyReport(Report):
    """The cause that holds a run up, and what to do about it."""

    state: Literal["working", "held", "broken", "over", "idle"]
    """`held`: something has to end or to be fixed; `broken`: a part does not work; `over`: it has
    failed or was cancelled; `idle`: there is nothing to do."""
    is_healthy: bool
    """True if no action is needed; the exit code is 3 otherwise."""
    cause: str
    """The same for the same cause, whatever durations the text mentions."""
    text: str
    owner: str
    """The waiting part, if it waits for slow work of its own."""
    notes: tuple[str, ...]
    ended_waits: tuple[EndedWaitReport, ...] = ()
    """The newest 20 waits of a second or more that have ended, the newest first."""


class StageReport(Report):
    """One stage of an experiment."""

    name: str
    state: str
    """`pending`, `running`, `finished`, `failed`, or `stopped`; of a run that was stopped it is
    that of all its stages."""
    newest_checkpoint: int | None = None
    """Train step of its newest checkpoint, of a run that has stopped."""
    total_train_steps: int | None = None


class DeviceWishReport(Report):
    """A role that wants the device."""

    role: str
    reason: str
    waited_seconds: float


class DeviceTurnReport(Report):
    """The turn on a GPU that engine and trainer share."""

    holder: str | None
    """`explorer` or `trainer`; None while neither has it."""
    process: str
    reason: str
    held_seconds: float
    """Since it was taken, or given back."""
    wishes: tuple[DeviceWishReport, ...]


class ExperimentReport(Report):
    """One experiment, with its stages in order."""

    label: str
    state: str
    """`running`, `finished`, `failed`, `cancelled`, or `stopped`: `trinity run` goes on with it."""
    reason: str
    stages: tuple[StageReport, ...]
    turn: DeviceTurnReport | None = None
    """None where engine and trainer share no GPU."""


class WorkReport(Report):
    """Counts of a stage that is at work."""

    stage: str
    explore_step: int
    trained_step: int
    num_pending: int
    num_leased: int
    num_ready: int
    num_stream_pending: int
    num_dead_letters: int
    changes: tuple[str, ...]
    """Settings that were changed after the stage was opened."""


class MemberReport(Report):
    """One process, and what it does."""

    role: str
    address: str
    stage: str
    activity: str
    version: int | None
    """The version of the weights that it has."""
    silent_seconds: float


class WaitReport(Report):
    """One wait of a part for another one, and why."""

    owner: str
    waits_for: str
    reason: str
    waited_seconds: float
    deadline_seconds: float | None
    """None if it never gives up."""


class StatusReport(Report):
    """The state of a run, running or stopped."""

    job_dir: str
    is_running: bool
    experiments: tuple[ExperimentReport, ...]
    work: tuple[WorkReport, ...] = ()
    members: tuple[MemberReport, ...] = ()
    waits: tuple[WaitReport, ...] = ()
    first_evaluation: EvaluationSummary | None = None
    best_evaluation: EvaluationSummary | None = None
    final_evaluation: EvaluationSummary | None = None


REPORTS: Mapping[str, type[Report]] = {"status": StatusReport, "why": WhyReport}


def why_report(verdict: Diagnosis, found: SystemSnapshot) -> WhyReport:
    """Returns a diagnosis as it is printed, with what it was made from."""
    return WhyReport(
        state=verdict.state.value,
        is_healthy=verdict.is_healthy,
        cause=verdict.cause,
        text=verdict.text,
        owner=verdict.owner,
        notes=verdict.notes,
        ended_waits=tuple(map(_ended_wait, found.own_ended_waits)),
    )


def _ended_wait(wait: EndedWaitSnapshot) -> EndedWaitReport:
    return EndedWaitReport(
        role=wait.role,
        owner=wait.owner,
        waits_for=wait.waits_for,
        reason=wait.reason,
        waited_seconds=wait.waited_seconds,
        ended_seconds_ago=wait.ended_seconds_ago,
        stage=wait.stage,
    )


def running_report(
    job_dir: Path,
    now: synchronizer_pb2.GetStatusResponse,
    work: buffer_pb2.GetBufferStatusResponse,
    waits: Iterable[synchronizer_pb2.Wait],
) -> StatusReport:
    """Returns the state of a run that is going on."""
    return StatusReport(
        job_dir=str(job_dir),
        is_running=True,
        experiments=tuple(map(_experiment, now.experiments)),
        work=tuple(map(_work, work.stages)),
        members=tuple(map(_member, now.members)),
        waits=tuple(map(_wait, waits)),
    )


def stopped_report(
    job_dir: Path, label: str, stages: Iterable[StageReport], summary: RunSummary | None
) -> StatusReport:
    """Returns the state of a run that has stopped; `summary` is that of its end, if it had one."""
    state = summary.state if summary else "stopped"
    experiment = ExperimentReport(
        label=label,
        state=state,
        reason=summary.reason if summary else "",
        stages=tuple(stages),
    )
    return StatusReport(
        job_dir=str(job_dir),
        is_running=False,
        experiments=(experiment,),
        first_evaluation=summary.first_evaluation if summary else None,
        best_evaluation=summary.best_evaluation if summary else None,
        final_evaluation=summary.final_evaluation if summary else None,
    )


def _experiment(experiment: synchronizer_pb2.Experiment) -> ExperimentReport:
    return ExperimentReport(
        label=experiment.label,
        state=_name(synchronizer_pb2.ExperimentState.Name(experiment.state)),
        reason=experiment.reason,
        stages=tuple(
            StageReport(name=stage.name, state=_name(synchronizer_pb2.StageState.Name(stage.state)))
            for stage in experiment.stages
        ),
        turn=_turn(experiment.turn) if experiment.HasField("turn") else None,
    )


def _turn(turn: synchronizer_pb2.DeviceTurn) -> DeviceTurnReport:
    return DeviceTurnReport(
        holder=_name(synchronizer_pb2.Role.Name(turn.holder)) if turn.holder else None,
        process=turn.process,
        reason=turn.reason,
        held_seconds=turn.held_seconds,
        wishes=tuple(
            DeviceWishReport(
                role=_name(synchronizer_pb2.Role.Name(wish.role)),
                reason=wish.reason,
                waited_seconds=wish.waited_seconds,
            )
            for wish in turn.wishes
        ),
    )


def _work(stage: buffer_pb2.StageStatus) -> WorkReport:
    return WorkReport(
        stage=stage.key.stage,
        explore_step=stage.explore_step,
        trained_step=stage.trained_step,
        num_pending=stage.num_pending,
        num_leased=stage.num_leased,
        num_ready=stage.num_ready,
        num_stream_pending=stage.num_stream_pending,
        num_dead_letters=stage.num_dead_letters,
        changes=tuple(change_text(change) for change in stage.changes),
    )


def _member(member: synchronizer_pb2.Member) -> MemberReport:
    return MemberReport(
        role=_name(synchronizer_pb2.Role.Name(member.role)),
        address=member.address,
        stage=member.stage,
        activity=member.activity,
        version=member.version if member.version >= 0 else None,
        silent_seconds=member.silent_seconds,
    )


def _wait(wait: synchronizer_pb2.Wait) -> WaitReport:
    return WaitReport(
        owner=wait.owner,
        waits_for=wait.waits_for,
        reason=wait.reason,
        waited_seconds=wait.waited_seconds,
        deadline_seconds=wait.deadline_seconds or None,
    )


def _name(constant: str) -> str:
    """Converts `EXPERIMENT_STATE_RUNNING` to `running`."""
    return constant.rpartition("_")[2].lower()


def schema_text(report: type[Report]) -> str:
    """Returns the JSON Schema of a report as the file has it."""
    return json.dumps(report.model_json_schema(mode="serialization"), indent=1) + "\n"


def main() -> None:
    """Writes the schemas into the folder that the first argument names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, report in REPORTS.items():
        (folder / f"{name}.json").write_text(schema_text(report), encoding="utf-8")


if __name__ == "__main__":
    main()
