"""Output of `trinity config check`, which imports only the modules that a check needs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer
from pydantic import JsonValue

from trinity.cli.overrides import parse_overrides
from trinity.config.check import CheckReport, check_file, locate_errors
from trinity.config.checks.hubs import hub_notes
from trinity.config.checks.packages import missing_packages
from trinity.config.checks.runtime import check_local_inputs, check_package
from trinity.config.plan.rollouts_ahead import largest_lag
from trinity.config.schema.base import KeyStatus
from trinity.errors import UserError
from trinity.rft.checks.names import check_part_names, workflow_notices
from trinity.run.output import STATUS_LABELS, pluralize

USER_ERROR = 2
LABEL_WIDTH = 11


def check_files(paths: Sequence[Path], overrides: Sequence[str], *, strict: bool) -> None:
    """Prints the report of each file; exits with 2 if one cannot be run."""
    if not paths:
        raise UserError("no file is named: give one or more YAML files")
    values = parse_overrides(overrides)
    are_good = [_check(path, check_on_machine(path, values), strict) for path in paths]
    if not all(are_good):
        raise typer.Exit(USER_ERROR)


def check_on_machine(path: Path, overrides: Mapping[str, JsonValue]) -> CheckReport:
    """Checks a file and that its names exist on this machine; advises on missing packages."""
    report = check_file(path, overrides)
    if not report.stages or report.reading is None:
        return report
    errors = list(report.errors)
    for check in (
        partial(check_package, report.stages[0].config.monitor),
        partial(check_part_names, report.stages),
        partial(check_local_inputs, report.stages),
    ):
        try:
            check()
        except UserError as error:
            errors.extend(locate_errors(str(error), report.stages, report.reading))
    missing = missing_packages(report.plan) if report.plan else ()
    notices = (*hub_notes(report.stages), *workflow_notices(report.stages))
    advice = (*report.advice, *missing, *notices)
    return replace(report, errors=tuple(dict.fromkeys(errors)), advice=advice)


def _check(path: Path, report: CheckReport, strict: bool) -> bool:
    lines = list(_lines(report))
    print(f"{path}: {_summary_line(report)}")
    for word, text in lines:
        print(f"  {word:{LABEL_WIDTH}}{text}")
    return not report.errors and not (strict and report.notices)


def _lines(report: CheckReport) -> Iterator[tuple[str, str]]:
    for error in report.errors:
        yield "error", error
    for status in (KeyStatus.PLANNED, KeyStatus.NO_EFFECT, KeyStatus.RENAMED):
        for notice in (notice for notice in report.notices if notice.status is status):
            place = f"line {notice.line}" if notice.line else "command line"
            yield STATUS_LABELS[status], f"{place}: {notice}"
    for text in report.advice:
        yield "advice", text
    for stage in report.stages:
        if stage.has_dynamic_sync and stage.needs_training:
            lag = pluralize(largest_lag(stage), "train step")
            longer = "; those that take longer than all that follow are older: see `max_staleness`"
            if stage.algorithm.sampling.max_staleness is not None:
                longer = ""
            yield "lag", f"stage `{stage.name}`: rollouts are up to {lag} old{longer}"


def _summary_line(report: CheckReport) -> str:
    counted = [
        _count(len(report.errors), "error"),
        *(
            _count(sum(notice.status is status for notice in report.notices), word, word)
            for status, word in STATUS_LABELS.items()
        ),
        _count(len(report.advice), "advice", "advice"),
    ]
    return ", ".join(text for text in counted if text) or "ok"


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}" if number else ""
