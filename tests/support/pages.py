"""The files and commands of a page of the documentation."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """Writes the blocks that have a title as files of that name."""
    for _, title, text in FENCE.findall((ROOT / page).read_text()):
        if title:
            (folder / title).write_text(text)


def blocks(page: str, language: str) -> list[str]:
    """Returns the blocks of a language that are not files, in their order."""
    found = FENCE.findall((ROOT / page).read_text())
    return [text for name, title, text in found if name == language and not title]
