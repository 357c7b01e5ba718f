"""Pages of the documentation whose tables the code writes.

    python -m MODULE FILE [--check]

What stands between `<!-- table: name -->` and `<!-- end -->` is replaced; all else is kept.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_TABLE = re.compile(r"<!-- table: (?P<name>[\w ]+) -->\n.*?<!-- end -->", re.DOTALL)


def write_page(description: str, documented: Callable[[str], str]) -> None:
    """Write the page that the command line names, or say that it is not what the code says."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    given = parser.parse_args()
    before = given.file.read_text(encoding="utf-8")
    after = documented(before)
    if not given.check:
        given.file.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{given.file} is not what the code says: run make docs")


def fill_tables(text: str, lines_of: Callable[[str], Iterable[str]]) -> str:
    """The text with the lines of each table, by its name, in place of those it has."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"]
        return "\n".join([f"<!-- table: {name} -->", *lines_of(name), "<!-- end -->"])

    return _TABLE.sub(filled, text)
