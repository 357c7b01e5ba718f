"""What a container adds to an environment: its image's variables, its user, where it may write."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.images.environments import Environment, variables
from tests.support.deployed.by_hand import ByHand

USER = 10001
"""Of the images and the manifests; no machine knows its name."""
READS_ALL = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
"""The interpreter may lie in somebody's home: it reads everything, and writes its own alone."""


def python_of(environment: Environment) -> Path:
    """The image's Python, run by the containers' user where this process may become it."""
    if os.geteuid() != 0:
        return environment.python
    script = environment.folder.parent / "python"
    user = f"--reuid={USER} --regid={USER} --clear-groups --no-new-privs {READS_ALL}"
    script.write_text(f'#!/bin/sh\nexec setpriv {user} -- "{environment.python}" "$@"\n')
    script.chmod(0o755)
    return script


def give(path: Path) -> None:
    """Make a folder the containers' user's, with all that it holds."""
    path.mkdir(exist_ok=True, parents=True)
    if os.geteuid() == 0:
        for one in (path, *path.rglob("*")):
            os.chown(one, USER, USER)


def contain(node: ByHand, environments: Mapping[str, Environment]) -> None:
    """Give the node's processes their images' variables, and `/tmp` and `/cache` to write to."""
    give(node.secrets)
    mounts = {f"/{name}": node.folder / name for name in ("tmp", "cache")}
    for folder in mounts.values():
        give(folder)
    for service in node.compose["services"].values():
        image = str(service["image"]).removeprefix("trinity-").partition(":")[0]
        if image in environments:
            places = {**mounts, "/venv": environments[image].folder}
            given = {**variables(image), "TMPDIR": "/tmp", **service.get("environment", {})}
            service["environment"] = {key: _here(str(given[key]), places) for key in given}


def _here(value: str, places: Mapping[str, Path]) -> str:
    """A path of the container, and `$PATH` behind it, as they are on this machine."""
    for inside, here in places.items():
        if value == inside or value.startswith(f"{inside}/"):
            value = str(here) + value.removeprefix(inside)
    return value.replace("$PATH", os.environ["PATH"])
