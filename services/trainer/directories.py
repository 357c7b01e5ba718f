"""Directories named `<kind><number>-<incarnation>`, of which only the announced ones count."""

import re
import shutil
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
NAME_PATTERN = re.compile(r"[a-z-]+\d+-(\d+)")


def remove_leftovers(root: Path, *, kept: set[str], incarnation: int) -> None:
    """Removes what earlier incarnations began and never announced; creates the root if missing."""
    root.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if path.name not in kept and _is_leftover(path, incarnation):
            shutil.rmtree(path)


def _is_leftover(path: Path, incarnation: int) -> bool:
    if path.suffix == TEMPORARY_SUFFIX:
        return True
    match = NAME_PATTERN.fullmatch(path.name)
    return match is not None and int(match[1]) < incarnation
