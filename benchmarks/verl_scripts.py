"""Counts the outcomes of scripts of veRL: converted, clean, and why the others are not.

git clone --depth 1 https://github.com/verl-project/verl
git clone --depth 1 https://github.com/verl-project/verl-recipe recipe
git clone https://github.com/verl-project/verl verl-of-january
git -C verl-of-january checkout b178a3cd
python -m benchmarks.verl_scripts verl/examples recipe verl-of-january/examples [--list]

The copies must be whole: scripts name configurations that lie next to their folder. They start
modules of `recipe`, so the folder of recipes has this name.

A script is clean if its report names nothing without counterpart, and `trinity config check` finds
no error and no planned key. If it lies in a copy of veRL, no function that decides an update may
differ from all versions in veRL: otherwise it is clean by its keys alone.
"""

import argparse
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from trinity.config.check import check_file
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.verl.convert import Converted, convert
from trinity.verl.settings import read_starts
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.work import CHANGED_TITLE

NO_COUNTERPART = "has no counterpart"
_MISSING = "Without counterpart here"
_KEY = re.compile(r"\s*(?:- )?([\w./@-]+(?: manager)?)=(.*)")
REASONS = (
    ("videos", re.compile(r"video_key")),
    ("router replay", re.compile(r"router_replay")),
    ("a custom program", re.compile(r"\bprogram has no")),
    ("an agent's framework or a simulated user", re.compile(r"multi_turn|rollout\.agent")),
)
"""Kinds of reasons, the first that a script has counts."""
_VARIABLE = re.compile(
    r"environment variable|is missing: (give|`mode)|has no adapter_config.json|waits for a value"
    rf"|not '{UNKNOWN}'"
)
OUTSIDE = "clean, once its variables and paths are set"
"""Scripts that take a path from their environment, or an adapter's directory that is not here."""
CHANGED = "clean by its keys, with functions of its own in a copy of veRL"
_OF_ROWS = re.compile(r"data\.(custom_cls|sampler|train_max_samples|val_max_samples)\b")
WRITTEN = "clean, once its rows are written"
"""Scripts whose own class of rows or sampler `--write-rows` runs once."""
OTHER = "an option without counterpart"


@dataclass(frozen=True, slots=True)
class ScriptOutcome:
    """The result of converting a script."""

    path: Path
    is_converted: bool
    reasons: tuple[str, ...]
    """Why it is not clean; empty if it is, the answer alone if it was not converted."""
    changed: tuple[str, ...] = ()
    """Functions of its veRL that no version of veRL has, and that decide an update."""

    @property
    def kind(self) -> str:
        """The first kind of its reasons."""
        text = " ".join(self.reasons)
        if not self.is_converted:
            return "trains nothing" if "trains nothing" in text else "starts no veRL"
        if not self.reasons:
            return CHANGED if self.changed else "clean"
        if all(_VARIABLE.search(reason) for reason in self.reasons):
            return OUTSIDE
        if all(_VARIABLE.search(reason) or _OF_ROWS.search(reason) for reason in self.reasons):
            return WRITTEN
        return next((name for name, pattern in REASONS if pattern.search(text)), OTHER)


def main() -> None:
    """Prints the counts of all scripts below the folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--list", action="store_true", help="each script that is not clean")
    options = parser.parse_args()
    outcomes = [outcome_of(path) for folder in options.folders for path in scripts_below(folder)]
    if options.list:
        for outcome in outcomes:
            if said := (*outcome.reasons, *outcome.changed):
                print(f"{outcome.path}: {outcome.kind}: {'; '.join(said)}")
    for line in table(outcomes):
        print(line)


def scripts_below(folder: Path) -> list[Path]:
    """Returns all shell scripts below a folder, sorted."""
    return sorted(folder.rglob("*.sh"))


def table(outcomes: list[ScriptOutcome]) -> Iterator[str]:
    """Yields the counts as Markdown."""
    yield "| scripts | number |"
    yield "| --- | --- |"
    yield f"| all | {len(outcomes)} |"
    yield f"| converted | {sum(outcome.is_converted for outcome in outcomes)} |"
    for kind, number in Counter(outcome.kind for outcome in outcomes).most_common():
        yield f"| {kind} | {number} |"


def outcome_of(path: Path) -> ScriptOutcome:
    """Converts and checks a script; one that starts veRL several times has all their reasons."""
    reasons: dict[str, None] = {}
    changed: dict[str, None] = {}
    try:
        for settings in read_starts([str(path)]):
            converted = convert(settings)
            reasons |= dict.fromkeys((*missing_keys(converted), *_mistakes(converted)))
            changed |= dict.fromkeys(lines_below(converted, CHANGED_TITLE))
    except UserError as error:
        return ScriptOutcome(path, is_converted=False, reasons=(" ".join(str(error).split()),))
    return ScriptOutcome(path, True, tuple(reasons), tuple(changed))


def missing_keys(converted: Converted) -> list[str]:
    """Returns a reason for each key that the report lists as without counterpart."""
    found = []
    for line in lines_below(converted, _MISSING):
        if key := _KEY.match(line):
            is_unknown = key[2].startswith((f"{UNKNOWN} ", "${oc.env:"))
            why = "waits for a value that the script does not set" if is_unknown else NO_COUNTERPART
            found.append(f"{key[1]} {why}")
    return found


def lines_below(converted: Converted, title: str) -> Iterator[str]:
    """Yields the lines of the report below a title."""
    above = ""
    for line in converted.report:
        above = above if line.startswith(" ") else line
        if above == f"{title}:" and line != above:
            yield line.strip().removeprefix("- ")


def _mistakes(converted: Converted) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.yaml"
        path.write_text(converted.yaml, encoding="utf-8")
        for name, text in converted.parts.items():
            (path.parent / name).write_text(text, encoding="utf-8")
        with mock.patch.dict(os.environ, {PLUGIN_DIRS_VARIABLE: folder}):
            report = check_file(path)
    yield from report.errors
    for notice in report.reading.planned if report.reading else ():
        yield str(notice)


if __name__ == "__main__":
    main()
