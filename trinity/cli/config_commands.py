"""Output of `trinity config`: show, diff, explain and schema."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from trinity.cli.overrides import parse_overrides
from trinity.config.changes.plans import PlanChange
from trinity.config.changes.rules import ChangeKind
from trinity.config.check import CheckReport, check_file
from trinity.config.docs.explain import (
    MAX_EXPLAINED_KEYS,
    explain_key_lines,
    explain_verl_key,
    find_keys,
    json_schema,
)
from trinity.config.docs.resolved import ResolvedConfig, resolve_config
from trinity.config.loading.yaml import yaml_text
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.base import KeyStatus, format_value, redact_secrets
from trinity.errors import UserError
from trinity.verl.key_table import verl_names

USER_ERROR = 2
TERM_WIDTH = 9
KIND_TITLES = {
    ChangeKind.FREE: "free:",
    ChangeKind.EXPERIMENT: "changes the experiment, `trinity run --accept-changes` goes on:",
    ChangeKind.IMPOSSIBLE: "impossible:",
}


def show_file(file: Path, overrides: Sequence[str], *, with_origin: bool) -> None:
    """Prints the resolved file."""
    report = _report(file, overrides)
    resolved = _resolved(report)
    for notice in report.notices:
        if notice.status is KeyStatus.PLANNED:
            print(f"# without what is planned: {notice} {notice.place}")
    tree = redact_secrets("", resolved.tree)
    print(yaml_text(tree, resolved.origins.get if with_origin else lambda _: None))


def show_run_difference(file: Path, job_dir: Path, overrides: Sequence[str]) -> int:
    """Prints what differs in a file from the run in a directory; returns the exit code."""
    from trinity.run.launch.resume import changed_run  # imports gRPC

    changed = changed_run(_plan_in(job_dir, file, overrides))
    if changed is None:
        raise UserError(f"{job_dir} holds no run: give a file, or the directory of a run")
    for kind in ChangeKind:
        of_kind = [change for change in changed.changes if change.kind is kind]
        if of_kind:
            print(KIND_TITLES[kind])
        for change in of_kind:
            print(f"  {change.key}: {change.before} -> {change.now}")
            for line in _change_lines(change):
                print(f"    {line}")
    return USER_ERROR if changed.impossible else int(bool(changed.changes))


def _change_lines(change: PlanChange) -> Iterator[str]:
    yield f"{change.why}; {change.instead}" if change.instead else change.why
    if change.rounds:
        yield "the same bits are no longer promised from there on"


def _plan_in(job_dir: Path, file: Path, overrides: Sequence[str]) -> ExperimentPlan:
    """Returns the plan of a file as that of the run in a directory."""
    report = _report(file, overrides)
    assert report.plan is not None
    return report.plan.model_copy(update={"job_dir": str(job_dir.absolute())})


def show_difference(before: Path, after: Path, overrides: Sequence[str] = ()) -> bool:
    """Prints lines for each key that acts differently; returns True if there are any."""
    old, new = _resolved(_report(before, ())), _resolved(_report(after, overrides))
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
                print(f"  {sign} {format_value(key, values[key])}  # {origins.origins[key]}")
    return bool(changed)


def _report(file: Path, overrides: Sequence[str]) -> CheckReport:
    report = check_file(file, parse_overrides(overrides))
    if report.errors:
        raise UserError("\n".join(report.errors))
    if report.plan is None:
        raise UserError(f"{file} cannot be resolved: see `trinity config check {file}`")
    return report


def _resolved(report: CheckReport) -> ResolvedConfig:
    assert report.plan and report.reading
    return resolve_config(report.plan, report.reading.source)


def explain_key(asked: str) -> None:
    """Prints the explanation of a key; if many keys end that way, only their names."""
    if (of_verl := explain_verl_key(asked)) is not None:
        what, ours = of_verl
        print(f"{asked}\n  {what}")
        if ours is None:
            return
        print()
        asked = ours
    found = find_keys(asked)
    if len(found) > MAX_EXPLAINED_KEYS:
        print(f"{len(found)} keys end with `{asked}`:")
        for key in found:
            print(f"  {key.path}")
        return
    for position, key in enumerate(found):
        if position:
            print()
        print(key.path)
        for word, text in explain_key_lines(key, verl_names(key.plain_path)):
            print(f"  {word:{TERM_WIDTH}}{text}" if word else f"  {text}")


def print_schema() -> None:
    """Prints the schema as JSON."""
    print(json.dumps(json_schema(), indent=1))
