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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.faults import Fault
from tests.support.shape import faults_of_shape, is_source

ROOT = Path(__file__).parents[2]
SOURCES = ("trinity/", "services/", "benchmarks/", "deploy/")
PRODUCT = ("trinity/", "services/")
RECORDS = ("docs/decisions/",)
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
RATES: Mapping[str, tuple[str, float]] = {
    "what it holds, as a noun": (
        r"\bwhat (?:it|they|a|the|is|was|has|comes|came|ends|holds|waits|users?|people|others?|no"
        r"|each)\b",
        0.16,
    ),
    "nothing, none": (r"\b(?:nothing|none)\b", 0.75),
    ", which": (r", which\b", 0.97),
    "of its own, of theirs, of a user's": (
        r"\bof (?:its|their|one's) own\b|\bof (?:theirs|ours|veRL's|users?'s?|a user's)\b",
        0.02,
    ),
    "is told, is asked": (r"\b(?:is|are|was|were|be) (?:asked|told)\b", 0.06),
    "beside": (r"\bbeside\b", 0.0),
    "in place of": (r"\bin place of\b", 0.05),
    "begun, amid, thereby, once more, so many": (
        r"\b(?:begun|amid|anew|thereby|therewith|hence|lest|once more|so many)\b",
        0.1,
    ),
    "whose": (r"\bwhose\b", 0.8),
}
"""Turns of phrase, and their highest rate per 1,000 words in flower, verl, prime-rl,
tinker-cookbook and TRL. Three times that rate is too much, or 0.15 where that is more."""
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
    """Yields the faults of a Markdown file, outside of code blocks, which say their language."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
            if is_code and line.strip() == "```" and not file.startswith(RECORDS):
                yield Fault(file, number, "a code block says no language, so nothing reads it")
        elif not is_code:
            yield from _words(file, number, re.sub(r"`[^`]*`", "", line))


def _words(file: str, line: int, text: str) -> Iterator[Fault]:
    for found in WORDS.finditer(text):
        if found[0] not in ALLOWED.get(file, ()):
            yield Fault(file, line, f"`{found[0]}`")


def faults_of_rates(sources: Mapping[str, str]) -> Iterator[Fault]:
    """Yields the turns of phrase that are too frequent in docstrings, comments and messages."""
    num_words, found = 0, Counter[str]()
    for text in sources.values():
        strings = [
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        ]
        for prose in (*re.findall(r"#\s(.*)", text), *(one for one in strings if len(one) > 15)):
            num_words += len(prose.split())
            found.update({name: len(re.findall(RATES[name][0], prose)) for name in RATES})
    for name, (_, highest) in RATES.items():
        rate, limit = 1000 * found[name] / max(1, num_words), max(3 * highest, 0.15)
        if rate > limit:
            problem = (
                f"`{name}` comes {rate:.2f} times in 1,000 words of the product, over {limit:.2f}"
            )
            yield Fault("trinity", 0, problem)


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
    product = {file: text for file, text in sources.items() if file.startswith(PRODUCT)}
    return sorted((*found, *faults_of_shape(sources), *faults_of_rates(product)))


if __name__ == "__main__":
    listed = faults()
    sys.stdout.write("".join(f"{fault}\n" for fault in listed))
    sys.exit(f"check: {len(listed)} places to change" if listed else 0)
