"""Names of hubs, the environments with their packages, and task sets in them."""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote, unquote

from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject
from trinity.runtime.shipped import shipped

HUBS: Mapping[str, tuple[str, ...]] = {
    "verifiers": ("env", "num_tasks"),
    "openenv": ("num_tasks", "first_seed", "resets"),
}
"""Hubs, which are workflows of the same name, with the `workflow_args` that decide on the rows."""
HUBS_VARIABLE = "TRINITY_HUBS"
STAMP = "installed-from"
MAX_BYTES = 1_000
"""The limit of a taskset's path."""


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A task set of a hub; as a text it is the path of a taskset.

    HubPlace("verifiers", "/home/me/sums.py", {"num_tasks": 8})
    # verifiers:/home/me/sums.py?{"num_tasks": 8}
    """

    hub: str
    path: str
    """A file or folder of Python here, or a name or address that the hub knows."""
    arguments: JsonObject

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Returns the place; None for a path of anything else."""
        hub, _, rest = (text or "").partition(":")
        path, _, arguments = rest.partition("?")
        return cls(hub, unquote(path), json.loads(arguments)) if hub in HUBS and path else None

    def __str__(self) -> str:
        arguments = json.dumps(self.arguments, sort_keys=True)
        return f"{self.hub}:{quote(self.path, safe='/:@')}?{arguments}"


def hub_folder(hub: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder of a hub's environment, whether it is there or not."""
    return Path(environment.get(HUBS_VARIABLE) or Path(sys.prefix, "hubs")) / hub


def hub_lock(hub: str) -> Path:
    """Returns the lock of a hub's packages."""
    return shipped("requirements") / f"hub-{hub}.lock"


def lock_stamp(hub: str) -> str:
    """Returns the content of the file `installed-from` in a complete environment of a hub."""
    return hashlib.sha256(hub_lock(hub).read_bytes()).hexdigest()


def has_environment(hub: str) -> bool:
    """Returns true if a hub has an environment of this release here."""
    try:
        return bool(hub_python(hub))
    except UserError:
        return False


def hub_python(hub: str) -> Path:
    """Returns the Python of a hub's environment.

    Raises: UserError if the environment is missing or of another release.
    """
    folder = hub_folder(hub)
    python, stamp = folder / "bin" / "python", folder / STAMP
    is_whole = python.exists() and stamp.is_file()
    if is_whole and stamp.read_text().strip() == lock_stamp(hub):
        return python
    state = "of another release" if is_whole else "missing"
    raise UserError(
        f"the environment of the hub {hub}, {folder}, is {state}: run `trinity setup hub {hub}` "
        "on each machine of the buffer and of explorers"
    )
