"""Addresses of object stores and the like where a path belongs, and what only a shell expands."""

import re
from collections.abc import Iterator
from pathlib import Path

from trinity.config.plan.task_storage import DATABASES, expanded, without_password
from trinity.config.schema.base import Section
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILE = "file://"
_SHELLS = re.compile(r"\$([A-Za-z_]\w*)")
_ENDINGS = ("path", "_dir")
"""Of the keys that name a file or a folder."""
_OF_ROWS = (".path", "].path")
"""Of those that may name a database too."""


def check_addresses(config: Config) -> None:
    """Raises UserError for each path that is an address which nothing here can read or write."""
    said = [_complaint(key, value) for key, value in _paths(config, "")]
    if wrong := [sentence for sentence in said if sentence]:
        raise UserError("\n".join(wrong))


def _complaint(key: str, value: str) -> str | None:
    if key.endswith(_OF_ROWS) and value.startswith(DATABASES):
        return None
    if _ADDRESS.match(value):
        return _sentence(key, value)
    if variable := _SHELLS.search(value):
        filled = _SHELLS.sub(r"${oc.env:\1}", value)
        return f"`{key}: {value}`: only a shell fills in {variable[0]}: write {filled}"
    if value.startswith("~") and expanded(value) == Path(value):
        user = value.split("/", maxsplit=1)[0]
        return f"`{key}: {value}`: {user} is no user of this machine: write the whole path"
    return None


def _paths(section: Section, prefix: str) -> Iterator[tuple[str, str]]:
    for name in type(section).model_fields:
        value, key = getattr(section, name), f"{prefix}{name}"
        if isinstance(value, str) and name.endswith(_ENDINGS):
            yield key, value
        elif isinstance(value, Section):
            yield from _paths(value, f"{key}.")
        else:
            for place, item in _items(value):
                yield from _paths(item, f"{key}{place}.")


def _items(value: object) -> Iterator[tuple[str, Section]]:
    """Yields the sections of a list or of names, each with what leads to it."""
    if isinstance(value, tuple):
        yield from ((f"[{n}]", item) for n, item in enumerate(value) if isinstance(item, Section))
    elif isinstance(value, dict):
        yield from ((f".{name}", item) for name, item in value.items() if isinstance(item, Section))


def _sentence(key: str, value: str) -> str:
    shown = without_password(value)
    if value.startswith(_FILE):
        return f"`{key}: {shown}` must be a path: write {value.removeprefix(_FILE)}"
    known = " or ".join(f"`{start}...`" for start in DATABASES)
    databases = f"; databases are {known}" if key.endswith(_OF_ROWS) else ""
    return (
        f"`{key}: {shown}` is an address, where a path of this machine belongs: mount it or "
        f"download it there, and give that path{databases}"
    )
