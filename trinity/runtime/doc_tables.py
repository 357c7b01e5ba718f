"""Documentation pages whose tables are generated from the code.

    python -m MODULE FILE [--check]

The text between `<!-- table: name -->` and `<!-- end -->` is replaced; the rest is kept.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_TABLE = re.compile(r"<!-- table: (?P<name>[\w ]+) -->\n.*?<!-- end -->", re.DOTALL)


def write_page(description: str, documented: Callable[[str], str]) -> None:
    """Writes the page named on the command line, or with --check exits on a difference."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("--check", action="store_true", help="do not write, fail on a difference")
    options = parser.parse_args()
    before = options.file.read_text(encoding="utf-8")
    after = documented(before)
    if not options.check:
        options.file.write_text(after, encoding="utf-8")
    elif before != after:
        sys.exit(f"{options.file} differs from the code: run make docs")


def fill_tables(text: str, lines_of: Callable[[str], Iterable[str]]) -> str:
    """Returns the text with each table's lines replaced by those of `lines_of`."""

    def filled(found: re.Match[str]) -> str:
        name = found["name"]
        return "\n".join([f"<!-- table: {name} -->", *lines_of(name), "<!-- end -->"])

    return _TABLE.sub(filled, text)
