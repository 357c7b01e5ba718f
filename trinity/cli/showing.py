"""`trinity config show` and `diff`: files fully resolved."""

from collections.abc import Sequence
from pathlib import Path

from trinity.cli.overrides import parse_overrides
from trinity.config.check import Report, check_file
from trinity.config.docs.resolved import Resolved, resolve
from trinity.config.loading.yaml import yaml_text
from trinity.config.schema.base import Status, hidden, shown
from trinity.errors import UserError


def show_file(file: Path, overrides: Sequence[str], *, with_origin: bool) -> None:
    """Prints the resolved file."""
    report = _report(file, overrides)
    resolved = _resolved(report)
    for notice in report.notices:
        if notice.status is Status.PLANNED:
            print(f"# without what is planned: {notice} {notice.place}")
    tree = hidden("", resolved.tree)
    print(yaml_text(tree, resolved.origins.get if with_origin else lambda _: None))


def show_difference(before: Path, after: Path) -> bool:
    """Prints lines for each key that acts differently; returns True if there are any."""
    old, new = _resolved(_report(before, ())), _resolved(_report(after, ()))
    old_values, new_values = dict(old.leaves()), dict(new.leaves())
    changed = [
        key
        for key in dict.fromkeys((*old_values, *new_values))
        if old_values.get(key) != new_values.get(key) or (key in old_values) != (key in new_values)
    ]
    for key in changed:
        print(key)
        for sign, values, origins in (("-", old_values, old), ("+", new_values, new)):
            if key in values:
                print(f"  {sign} {shown(key, values[key])}  # {origins.origins[key]}")
    return bool(changed)


def _report(file: Path, overrides: Sequence[str]) -> Report:
    report = check_file(file, parse_overrides(overrides))
    if report.mistakes:
        raise UserError("\n".join(report.mistakes))
    if report.plan is None:
        raise UserError(f"{file} cannot be resolved: see `trinity config check {file}`")
    return report


def _resolved(report: Report) -> Resolved:
    assert report.plan and report.reading
    return resolve(report.plan, report.reading.source)
