"""Answers of `trinity status --json` and `trinity why --json`, and their JSON Schemas.

    python -m trinity.cli.reports docs/schemas       # writes status.json and why.json

Fields are only ever added.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.progress.summary import RunSummary
from trinity.run.progress.view import Evaluation
from trinity.run.state import (
    EndedWaitReport,
    ExperimentReport,
    MemberReport,
    Report,
    RunReport,
    WaitReport,
    WorkReport,
)


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


def running_report(job_dir: str, state: RunReport, waits: Iterable[WaitReport]) -> StatusReport:
    """Returns the state of a run that is going on, with these waits."""
    return StatusReport(
        job_dir=job_dir,
        is_running=True,
        experiments=state.experiments or (),
        work=state.work or (),
        members=state.members or (),
        waits=tuple(waits),
    )


def stopped_report(
    job_dir: Path, experiment: ExperimentReport, summary: RunSummary | None
) -> StatusReport:
    """Returns the state of a run that has stopped; `summary` is that of its end, if it had one."""
    return StatusReport(
        job_dir=str(job_dir),
        is_running=False,
        experiments=(experiment,),
        first_evaluation=summary.first_evaluation if summary else None,
        best_evaluation=summary.best_evaluation if summary else None,
        final_evaluation=summary.final_evaluation if summary else None,
    )


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
