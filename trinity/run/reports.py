"""Answers of `trinity status --json` and `trinity why --json`, and their JSON Schemas.

    python -m trinity.run.reports docs/schemas       # writes status.json and why.json

Fields are only ever added.
"""

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from trinity.errors import RpcError, RunFailed
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.monitors.factory import MONITOR_FOLDER
from trinity.run.monitors.feed import MonitorOutage
from trinity.run.places import Deployment, RunLocation
from trinity.run.progress.view import Evaluation
from trinity.run.runs import services_of, stopped_experiment
from trinity.run.state import (
    EndedWaitReport,
    ExperimentReport,
    MemberReport,
    Report,
    RunReport,
    WaitReport,
    WorkReport,
    ask_state,
)
from trinity.runtime.rpc.channel import open_channel


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
    """The waiting part, if it waits for its own slow work."""
    notes: tuple[str, ...]
    ended_waits: tuple[EndedWaitReport, ...] = ()
    """The newest 20 waits of a second or more that have ended, the newest first."""


class StatusReport(Report):
    """The state of a run, running or stopped."""

    job_dir: str
    is_running: bool
    experiments: tuple[ExperimentReport, ...]
    work: tuple[WorkReport, ...] = ()
    members: tuple[MemberReport, ...] = ()
    waits: tuple[WaitReport, ...] = ()
    first_evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    final_evaluation: Evaluation | None = None


REPORTS: Mapping[str, type[Report]] = {"status": StatusReport, "why": WhyReport}


def why_report(verdict: Diagnosis, found: RunReport) -> WhyReport:
    """Returns a diagnosis as it is printed, with the state that it was derived from."""
    return WhyReport(
        state=verdict.state.value,
        is_healthy=verdict.is_healthy,
        cause=verdict.cause,
        text=verdict.text,
        owner=verdict.owner,
        notes=verdict.notes,
        ended_waits=found.own_ended_waits,
    )


def report_of(place: RunLocation, state: RunReport | None) -> StatusReport:
    """Returns the report of a run; without a state it is one of this machine that has stopped."""
    if state is not None:
        return StatusReport(
            job_dir=str(place) if isinstance(place, Path) else "",
            is_running=True,
            experiments=state.experiments or (),
            work=state.work or (),
            members=state.members or (),
            waits=state.waits,
        )
    assert isinstance(place, Path), "services that stop do not answer"
    experiment, summary = stopped_experiment(place)
    return StatusReport(
        job_dir=str(place),
        is_running=False,
        experiments=(experiment,),
        first_evaluation=summary.first_evaluation if summary else None,
        best_evaluation=summary.best_evaluation if summary else None,
        final_evaluation=summary.final_evaluation if summary else None,
    )


async def ask_run(place: RunLocation) -> RunReport | None:
    """Returns the state of a run, with the waits of its launcher; None if it has stopped.

    Raises: UserError if there is none, or it is not clear which; RunFailed if a service does not
    answer.
    """
    if (at := services_of(place)) is None:
        return None
    name = f"the run in {place}" if isinstance(place, Path) else f"the run at {at.synchronizer}"
    option = f" --job-dir {place}" if isinstance(place, Path) else ""
    try:
        state = await _ask(at, one=at is place)
        error = state.unanswered
    except RpcError as failure:
        error = str(failure)
    if error:
        raise RunFailed(f"{name} does not answer: {error}; `trinity why{option}` shows why")
    own = _monitor_waits(place) if isinstance(place, Path) else []
    return label_stages(state).model_copy(update={"waits": (*state.waits, *own)})


async def _ask(at: Deployment, *, one: bool) -> RunReport:
    """Asks both services, about the experiment that is meant if there may be others."""
    meant = await at.find() if one else None
    async with (
        open_channel(at.synchronizer, at.security) as to_synchronizer,
        open_channel(at.buffer, at.security) as to_buffer,
    ):
        return await ask_state(
            to_synchronizer,
            to_buffer,
            experiment_id=meant.id if meant else "",
            tenant=meant.tenant if meant else "",
        )


def label_stages(state: RunReport) -> RunReport:
    """Adds the experiment's label to the names of stages if there are several experiments."""
    work = state.work or ()
    if len({stage.experiment_id for stage in work}) < 2:
        return state
    labels = {experiment.id: experiment.label for experiment in state.experiments or ()}
    named = [
        stage.model_copy(
            update={
                "stage": f"{labels.get(stage.experiment_id, stage.experiment_id)} {stage.stage}"
            }
        )
        for stage in work
    ]
    return state.model_copy(update={"work": tuple(named)})


def _monitor_waits(job_dir: Path) -> list[WaitReport]:
    """Waits of the launcher, which is not a member."""
    absence = MonitorOutage.load_outage(job_dir / MONITOR_FOLDER)
    if absence is None:
        return []
    return [
        WaitReport(
            owner="launcher",
            waits_for=absence.monitor,
            reason=f"metrics wait, training goes on: {absence.reason}",
            waited_seconds=max(0.0, time.time() - absence.since),
        )
    ]


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
