"""`trinity config check`: one paragraph per file."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import typer
from pydantic import JsonValue

from trinity.cli.notices import WORDS
from trinity.cli.overrides import parse_overrides
from trinity.config.check import Report, check_file
from trinity.config.checks.runtime import check_known, check_package
from trinity.config.schema.base import Status
from trinity.errors import UserError

USER_MISTAKE = 2
WIDTH = 11


def check_files(paths: Sequence[Path], overrides: Sequence[str], *, strict: bool) -> None:
    """Prints the report of each file; exits with 2 if one cannot be run."""
    if not paths:
        raise UserError("no file is named: give one or more YAML files")
    values = parse_overrides(overrides)
    are_good = [_check(path, _checked(path, values), strict) for path in paths]
    if not all(are_good):
        raise typer.Exit(USER_MISTAKE)


def _checked(path: Path, overrides: Mapping[str, JsonValue]) -> Report:
    """Checks a file, and that its packages and names exist on this machine."""
    report = check_file(path, overrides)
    if report.plan is None:
        return report
    errors = list(report.mistakes)
    for check in (
        partial(check_package, report.plan.stages[0].config.monitor),
        partial(check_known, report.plan),
    ):
        try:
            check()
        except UserError as error:
            errors.extend(str(error).splitlines())
    return replace(report, mistakes=tuple(errors))


def _check(path: Path, report: Report, strict: bool) -> bool:
    lines = list(_lines(report))
    print(f"{path}: {_verdict(report)}")
    for word, text in lines:
        print(f"  {word:{WIDTH}}{text}")
    return not report.mistakes and not (strict and report.notices)


def _lines(report: Report) -> Iterator[tuple[str, str]]:
    for error in report.mistakes:
        yield "error", error
    for status in (Status.PLANNED, Status.NO_EFFECT, Status.RENAMED):
        for notice in (notice for notice in report.notices if notice.status is status):
            place = f"line {notice.line}" if notice.line else "command line"
            yield WORDS[status], f"{place}: {notice}"
    for text in report.advice:
        yield "advice", text


def _verdict(report: Report) -> str:
    counted = [
        _count(len(report.mistakes), "error"),
        *(
            _count(sum(notice.status is status for notice in report.notices), word, word)
            for status, word in WORDS.items()
        ),
        _count(len(report.advice), "advice", "advice"),
    ]
    return ", ".join(text for text in counted if text) or "ok"


def _count(number: int, word: str, plural: str = "") -> str:
    return f"{number} {word if number == 1 else plural or word + 's'}" if number else ""
