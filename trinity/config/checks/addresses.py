"""Addresses of object stores and the like, where a path belongs."""

import re
from collections.abc import Iterator

from trinity.config.plan.task_storage import DATABASES, without_password
from trinity.config.schema.base import Section
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILE = "file://"
_ENDINGS = ("path", "_dir")
"""Of the keys that name a file or a folder."""
_OF_ROWS = (".path", "].path")
"""Of those that may name a database too."""


def check_addresses(config: Config) -> None:
    """Raises UserError for each path that is an address which nothing here can read or write."""
    wrong = [
        _sentence(key, value)
        for key, value in _paths(config, "")
        if _ADDRESS.match(value) and not (key.endswith(_OF_ROWS) and value.startswith(DATABASES))
    ]
    if wrong:
        raise UserError("\n".join(wrong))


def _paths(section: Section, prefix: str) -> Iterator[tuple[str, str]]:
    for name in type(section).model_fields:
        value, key = getattr(section, name), f"{prefix}{name}"
        if isinstance(value, str) and name.endswith(_ENDINGS):
            yield key, value
        elif isinstance(value, Section):
            yield from _paths(value, f"{key}.")
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if isinstance(item, Section):
                    yield from _paths(item, f"{key}[{number}].")


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
