"""Checks prose, and the shape of source files: python -m tests.support.prose

A docstring opens with a verb in the third person or a noun phrase, not with a relative clause, and
no text uses archaic words or speaks of processes as persons (CONTRIBUTING.md, "Prose").
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support.faults import Fault
from tests.support.shape import faults_of_shape, is_source

ROOT = Path(__file__).parents[2]
SOURCES = ("trinity/", "services/", "benchmarks/", "deploy/")
GENERATED = ("trinity/api/", "services/buffer/migrations/", "services/synchronizer/migrations/")
OPENING = re.compile(
    r"(What|Whether|How|Which|Where|Who|Whose|When|Why|That|Those|As|Of|For|Until|Since|By|With"
    r"|Without|From|In|At|On)\b"
)
WORDS = re.compile(
    r"\b(nobody|somebody|everybody|whoever|whichever|anew|for ever|to be had|thereof|lest|in vain"
    r"|[Ww]ho (?:needs|wants|reads|takes|asks|calls|sends|looks|stores|serves|settles|waits|has|is"
    r"|rolls|adds|ends|runs|may))\b"
)
ALLOWED = {"trinity/runtime/process/child_process.py": {"nobody"}}
"""The Unix account of that name."""


def faults_of_source(file: str, text: str) -> Iterator[Fault]:
    """Yields the faults of a Python file's docstrings and comments."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            documentation = ast.get_docstring(node) or ""
            line = getattr(node, "lineno", 1)
            if opening := OPENING.match(documentation):
                yield Fault(file, line, f"a docstring opens with `{opening[0]}`")
            yield from _words(file, line, documentation)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield from _words(file, token.start[0], token.string)


def faults_of_document(file: str, text: str) -> Iterator[Fault]:
    """Yields the faults of a Markdown file, outside of code blocks."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield from _words(file, number, re.sub(r"`[^`]*`", "", line))


def _words(file: str, line: int, text: str) -> Iterator[Fault]:
    for found in WORDS.finditer(text):
        if found[0] not in ALLOWED.get(file, ()):
            yield Fault(file, line, f"`{found[0]}`")


def faults() -> list[Fault]:
    """Returns the faults of every file that git tracks."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found: list[Fault] = []
    sources: dict[str, str] = {}
    for file in listed.stdout.split():
        path = ROOT / file
        if file.startswith(GENERATED) or not path.exists():
            continue
        if file.endswith(".md"):
            found += faults_of_document(file, path.read_text(encoding="utf-8"))
        elif file.startswith(SOURCES):
            found += faults_of_source(file, path.read_text(encoding="utf-8"))
        if is_source(file):
            sources[file] = path.read_text(encoding="utf-8")
    return sorted((*found, *faults_of_shape(sources)))


if __name__ == "__main__":
    listed = faults()
    sys.stdout.write("".join(f"{fault}\n" for fault in listed))
    sys.exit(f"check: {len(listed)} places to change" if listed else 0)
