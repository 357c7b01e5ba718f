"""Storage of a taskset's tasks, and checks of the keys that belong to it."""

import re
from pathlib import Path

from trinity.config.data_files import SUFFIXES
from trinity.config.schema.data import TasksetConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.user_code.hubs.place import HUBS, MAX_BYTES, HubPlace

HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
SQLITE = "sqlite:///"
DATABASES = ("postgresql://", SQLITE)


def is_hub_name(path: str) -> bool:
    """True if it names a dataset on the Hugging Face hub: `owner/name`, with no such local path."""
    return HUB_NAME.fullmatch(path) is not None and not Path(path).exists()


def without_password(address: str) -> str:
    """A database's address with its password hidden."""
    return re.sub(r"(//[^:/@]*):[^@]*@", r"\1:***@", address)


def resolve_path(taskset: TasksetConfig, key: str, workflow: str) -> str | None:
    """Returns the path or address of the tasks; None for those that clients submit.

    The path of a queue is that of its backup. Raises: UserError if the keys do not go together.
    """
    storage, path = taskset.storage_type, taskset.path
    if workflow in HUBS and workflow in WORKFLOWS.builtins:
        return _hub_place(taskset, key, workflow)
    if storage in ("file", "sql") and not path:
        raise UserError(f"{key}.path` is missing: `storage_type: {storage}` reads it")
    if storage == "client" and path:
        raise UserError(
            f"{key}.path` goes with `storage_type: file`, `sql` or `queue`: remove one of the two"
        )
    if taskset.table and storage != "sql":
        raise UserError(f"{key}.table` goes with `storage_type: sql` only: remove one of the two")
    if not path:
        return None
    if storage == "queue":
        database_address(path, key)
        return None
    return database_address(path, key) if storage == "sql" else resolve_data_path(path)


def _hub_place(taskset: TasksetConfig, key: str, hub: str) -> str:
    """Returns the text of a hub's task set, with the arguments that decide on its rows."""
    path = taskset.path
    if taskset.storage_type != "file" or not path:
        raise UserError(
            f"{key}.path` names the environment of {hub}, with `storage_type: file`: give a file "
            "or folder of Python, or a name or address that the hub knows"
        )
    if path.startswith(f"{hub}:") and "?{" in path:  # as `trinity config show` writes it
        place = HubPlace.parse(path)
        path = place.path if place is not None else path
    if expanded(path).exists() or path.startswith(("/", ".", "~")) or path.endswith(".py"):
        path = absolute(path)
    args = taskset.workflow_args
    text = str(HubPlace(hub, path, {name: args[name] for name in HUBS[hub] if name in args}))
    if len(text.encode()) > MAX_BYTES:
        raise UserError(
            f"{key}.workflow_args`: {' and '.join(HUBS[hub])} have more than {MAX_BYTES:,} bytes "
            "as JSON, with the path: set them where the environment is defined"
        )
    return text


def mounted_path(path: str) -> str:
    """Returns the path of a taskset as a machine needs it: of a hub's its folder, if it has one."""
    place = HubPlace.parse(path)
    if place is None:
        return path
    folder = Path(place.path)
    return str(folder.parent if folder.suffix == ".py" else folder) if folder.is_absolute() else ""


def database_address(address: str, key: str) -> str:
    """Returns the address, with an absolute file for SQLite; a plain path is one.

    Raises: UserError if it is not a database's address.
    """
    if "://" not in address.removeprefix(SQLITE):
        return f"{SQLITE}{absolute(address.removeprefix(SQLITE))}"
    if not address.startswith(DATABASES):
        known = " or ".join(f"{start}..." for start in DATABASES)
        raise UserError(
            f"{key}.path` is not a database's address: give {known}, or the path of a SQLite file"
        )
    return address


def resolve_data_path(path: str) -> str:
    """Makes a path absolute, unless it is a hub name: not a file's, and in no local folder."""
    looks_local = path.endswith(SUFFIXES) or Path(path).parent.exists()
    return path if is_hub_name(path) and not looks_local else absolute(path)


def absolute(path: str) -> str:
    """The absolute path, `~` expanded; relative ones lie under the current directory."""
    return str(expanded(path).absolute())


def expanded(path: str) -> Path:
    """The path with `~` expanded; as it is if there is no such user, which a check refuses."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
