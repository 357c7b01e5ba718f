"""The Python files that Trinity-RFT has published, and the definitions in them.

upstream = Upstream.read()
upstream.has(path, blob_id(content))                 # the file is unchanged
upstream.origin_of(path, "MathWorkflow", text)       # of a changed file: UPSTREAM, CHANGED or OWN
"""

import ast
import base64
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Self

TABLE = Path(__file__).with_name("upstream.txt")
"""A line for each path: the ids of its versions, then `name=digests` of their definitions.

From the history of agentscope-ai/Trinity-RFT up to release 0.6.0. Ids and digests are cut.
"""
ID_BYTES = 9
DIGEST_BYTES = 4


class Origin(StrEnum):
    """The author of a file or a definition."""

    UPSTREAM = "upstream"
    CHANGED = "changed"
    OWN = "own"


@dataclass(frozen=True, slots=True)
class Upstream:
    """Ids of files by path, and digests of definitions by path and name."""

    ids: Mapping[str, frozenset[bytes]]
    definitions: Mapping[str, Mapping[str, frozenset[bytes]]]

    @classmethod
    @cache
    def read(cls) -> Self:
        """Reads the table of the package."""
        ids, definitions = {}, {}
        for line in TABLE.read_text(encoding="utf-8").splitlines():
            path, versions, *named = line.split(" ")
            ids[path] = frozenset(_pieces(versions, ID_BYTES))
            pairs = (item.split("=") for item in named)
            definitions[path] = {name: frozenset(_pieces(d, DIGEST_BYTES)) for name, d in pairs}
        return cls(ids, definitions)

    def origin(self, path: str, content: bytes) -> Origin:
        """Returns the origin of a file by its path, which begins at the root of a checkout."""
        if path not in self.ids:
            return Origin.OWN
        is_known = blob_id(content)[:ID_BYTES] in self.ids[path]
        return Origin.UPSTREAM if is_known else Origin.CHANGED

    def origin_of(self, path: str, name: str, text: str) -> Origin:
        """Returns the origin of a definition with this source text in a file."""
        digests = self.definitions.get(path, {}).get(name)
        if digests is None:
            return Origin.OWN
        return Origin.UPSTREAM if definition_digest(text) in digests else Origin.CHANGED


def _pieces(text: str, size: int) -> Iterator[bytes]:
    content = base64.b64decode(text + "=" * (-len(text) % 4))
    return (content[start : start + size] for start in range(0, len(content), size))


def blob_id(content: bytes) -> bytes:
    """Returns the id that git gives to a file with this content."""
    head = f"blob {len(content)}\0".encode()
    return hashlib.sha1(head + content, usedforsecurity=False).digest()


def definition_digest(text: str) -> bytes:
    """Returns the digest of a definition's lines, without the blanks at their ends."""
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return hashlib.sha256(lines.encode()).digest()[:DIGEST_BYTES]


def definition_text(lines: list[str], node: ast.stmt) -> str:
    """Returns the lines of a top-level statement, with its decorators."""
    decorators = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(lines[first - 1 : node.end_lineno])
