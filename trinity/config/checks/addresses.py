"""Addresses of object stores and the like where a path belongs, and what only a shell expands."""

import re
from collections.abc import Iterator
from pathlib import Path

from trinity.config.plan.task_storage import DATABASES, expanded, without_password
from trinity.config.schema.base import Section
from trinity.config.schema.data import TasksetConfig
from trinity.config.schema.experiment import Config
from trinity.errors import UserError

_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_FILE = "file://"
SERVED_HUB = "openenv"
"""The hub whose environments may run elsewhere."""
_SHELLS = re.compile(r"\$([A-Za-z_]\w*)")
_ENDINGS = ("path", "_dir")
"""Endings of keys that name a file or a folder."""
_OF_ROWS = (".path", "].path")
"""Keys that may name a database too."""


def check_addresses(config: Config) -> None:
    """Raises UserError with a line for each path that is an unsupported address."""
    given = config.buffer.explorer_input
    servers = {
        f"buffer.explorer_input.{key}.path"
        for key, tasks in given.written()
        if (tasks.default_workflow_type or given.default_workflow_type) == SERVED_HUB
    }
    said = [
        _complaint(key, value)
        for key, value in _paths(config, "")
        if not (key in servers and value.startswith(("http://", "https://")))
    ]
    said += [_not_a_file(key, tasks) for key, tasks in given.written()]
    if wrong := [sentence for sentence in said if sentence]:
        raise UserError("\n".join(wrong))


def _not_a_file(key: str, tasks: TasksetConfig) -> str | None:
    if tasks.storage_type != "file" or not tasks.path or not tasks.path.startswith(DATABASES):
        return None
    return (
        f"`buffer.explorer_input.{key}.path: {without_password(tasks.path)}` is a database, and "
        "`storage_type: file` reads files: give `storage_type: sql`"
    )


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
            if not (_names_database(section) and _ADDRESS.match(value)):
                yield key, value
        elif isinstance(value, Section):
            yield from _paths(value, f"{key}.")
        else:
            for place, item in _items(value):
                yield from _paths(item, f"{key}{place}.")


def _names_database(section: Section) -> bool:
    """True for a taskset whose path is read as a database's address, and judged as such."""
    return isinstance(section, TasksetConfig) and section.storage_type in ("sql", "queue")


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
