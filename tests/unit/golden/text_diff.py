"""Shows in what the texts of two states of the repository differ, case by case."""

import difflib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.unit.golden.corpus import Cases

MAX_NAMES = 6
NO_BASE = (
    "The texts to compare with are missing: {reason}. A diff needs git and a checkout that has the "
    "commit; another one is named with --base COMMIT."
)
NO_TEXTS = "The commit {commit} does not make these texts: {reason}"

Texts = dict[str, Cases]
"""Results by section and case, as `python -m tests.unit.golden --text` prints them."""


class NoTextsError(Exception):
    """Says in one sentence why there is nothing to compare with."""


def base_of(root: Path) -> str:
    """The commit at which this branch left `main`."""
    return _git(root, "merge-base", "HEAD", "main").decode().strip()


def texts_of(commit: str, sections: list[str], root: Path) -> Texts:
    """The texts of a commit, made by its own code in a directory of its own, with this Python."""
    archive = _git(root, "archive", "--format=tar", commit)
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.golden", "--text", *sections],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise NoTextsError(NO_TEXTS.format(commit=commit, reason=_last_line(done.stderr)))
    texts: Texts = json.loads(done.stdout)
    return texts


def _git(root: Path, *words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, check=True).stdout
    except FileNotFoundError:
        reason = "git is not installed"
    except subprocess.CalledProcessError as error:
        said = _last_line(error.stderr.decode(errors="replace"))
        reason = said or f"git {' '.join(words)} found nothing"
    raise NoTextsError(NO_BASE.format(reason=reason))


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def shown_diff(before: Mapping[str, Cases], after: Mapping[str, Cases]) -> str:
    """Lines that are gone and new; cases with the same ones are shown together."""
    cases_by_diff: dict[str, list[str]] = {}
    for section in sorted(before.keys() | after.keys()):
        old, new = before.get(section, {}), after.get(section, {})
        for name in sorted(old.keys() | new.keys()):
            if lines := _changed_lines(_lines_of(old, name), _lines_of(new, name)):
                cases_by_diff.setdefault(lines, []).append(f"{section}: {name}")
    return "\n".join(f"=== {_list(names)}\n{lines}" for lines, names in cases_by_diff.items())


def _list(names: list[str]) -> str:
    left_out = f", and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + left_out


def _changed_lines(old: list[str], new: list[str]) -> str:
    lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def _lines_of(cases: Cases, name: str) -> list[str]:
    return list(_flat(cases[name], "")) if name in cases else []


def _flat(tree: Any, key: str) -> Iterator[str]:
    """A line for each value, with its dotted key: readable without the lines around it.

    Items of a list of plain values have no numbers, so that one more changes one line.
    """
    if isinstance(tree, dict) and tree:
        for name in sorted(tree):
            yield from _flat(tree[name], f"{key}.{name}" if key else name)
    elif isinstance(tree, list) and tree:
        is_plain = not any(isinstance(item, dict | list) for item in tree)
        for position, item in enumerate(tree):
            yield from _flat(item, f"{key}[]" if is_plain else f"{key}[{position}]")
    else:
        yield f"{key} = {json.dumps(tree, ensure_ascii=False)}".removeprefix(" = ")
