"""Nothing is installed from a lock but files whose hash it has."""

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests

REPOSITORY = Path(__file__).parents[3]
LOCKS = REPOSITORY / "requirements"
INSTALL = LOCKS / "install_locked.sh"
PIN = re.compile(r"^[a-z0-9.-]+==[^\s=]+(?P<hashes>( \\\n    --hash=sha256:[0-9a-f]{64})*)$")
WITHOUT_LOCK = {"Makefile": 3, "deploy/check.sh": 2, "requirements/browser.sh": 1}
"""Tools of single checks, in environments under build/; nothing of them runs with the services."""


@as_subtests("lock", sorted(LOCKS.glob("*.lock")))
def test_every_pin_has_a_hash(lock: Path) -> None:
    assert list(without_hash(lock.read_text())) == []
    assert "==" in lock.read_text()


@pytest.mark.parametrize(
    "line",
    [
        "six==1.17.0",
        "six>=1.17.0 \\\n    --hash=sha256:" + 64 * "a",
        "six==1.17.0 \\\n    --hash=md5:" + 32 * "a",
    ],
)
def test_a_pin_without_one_is_found(line: str) -> None:
    lock = f"# A lock.\nabc==1.0 \\\n    --hash=sha256:{64 * 'b'}\n{line}\n"
    assert list(without_hash(lock)) == [line]


def without_hash(lock: str) -> Iterator[str]:
    """Yields what is neither a comment nor a pin with hashes."""
    text = "\n".join(line for line in lock.splitlines() if not line.startswith("#"))
    for entry in re.split(r"\n(?! )", text):
        found = PIN.match(entry)
        if found is None or not found["hashes"]:
            yield entry


def test_packages_of_two_locks_have_one_version_in_an_environment() -> None:
    """The build tools are installed first, and the rest beside them."""
    build, cpu = (dict(versions(LOCKS / f"{name}.lock")) for name in ("build", "cpu"))
    common = build.keys() & cpu.keys()
    assert {"packaging", "hatchling"} <= common
    assert {name: build[name] for name in common} == {name: cpu[name] for name in common}


def versions(lock: Path) -> Iterator[tuple[str, str]]:
    for line in lock.read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            name, _, version = line.strip(" \\").partition("==")
            yield name, version


def test_every_lock_is_installed_with_its_hashes() -> None:
    """One script installs locks; else pip installs this project alone, and tools of checks."""
    assert "--require-hashes" in INSTALL.read_text()
    assert "--no-build-isolation" in INSTALL.read_text()
    scripts = [path for path in files() if path != INSTALL]
    found = {str(path.relative_to(REPOSITORY)): others(path.read_text()) for path in scripts}
    assert {name: count for name, count in found.items() if count} == WITHOUT_LOCK


@pytest.mark.parametrize(
    "command",
    [
        "pip install --requirement cpu.lock",
        "python -m pip install six",
        "pip -q install --no-deps .",
    ],
)
def test_another_way_of_installing_is_found(command: str) -> None:
    assert others(f"set -e\n{command}\n") == 1


def files() -> Iterator[Path]:
    for pattern in ("Makefile", "requirements/*.sh", "deploy/*.sh", "deploy/docker/*", ".ci/run"):
        yield from REPOSITORY.glob(pattern)


def others(script: str) -> int:
    """Counts the calls of pip that take more than this project alone."""
    calls = re.findall(r"pip[^\n#'`|]*? install [^\n#]*", script)
    ours = re.compile(
        r"install --no-deps --no-build-isolation (--editable|\"\$\{options\[@\]\}\") \.$"
    )
    return sum(not ours.search(call.strip()) for call in calls)


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """A folder with one small wheel."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    contents = {
        "small.py": b"VALUE = 1\n",
        "small-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        "small-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n",
    }
    record = "".join(
        f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items()
    )
    contents["small-1.0.dist-info/RECORD"] = f"{record}small-1.0.dist-info/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / "small-1.0-py3-none-any.whl", "w") as wheel:
        for name, data in contents.items():
            wheel.writestr(name, data)
    return folder


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def test_a_file_with_a_locked_hash_is_installed(tmp_path: Path, wheels: Path) -> None:
    (wheel,) = wheels.iterdir()
    good = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"small==1.0 \\\n    --hash=sha256:{64 * 'a'} \\\n    --hash=sha256:{good}\n"
    done = install(tmp_path, wheels, lock)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "installed" / "small.py").exists()


def test_a_file_with_another_hash_is_refused(tmp_path: Path, wheels: Path) -> None:
    done = install(tmp_path, wheels, f"small==1.0 \\\n    --hash=sha256:{64 * 'a'}\n")
    assert done.returncode != 0
    assert not (tmp_path / "installed" / "small.py").exists()
    (told,) = re.findall(r"^error: (.*)$", done.stderr, re.MULTILINE)
    assert told.startswith("small==1.0 from file://")
    assert f"none of the hashes in {tmp_path / 'some.lock'}" in told
    assert "pip cache remove" in done.stderr and "PIP_INDEX_URL" in done.stderr


def test_a_pin_without_a_hash_is_refused(tmp_path: Path, wheels: Path) -> None:
    done = install(tmp_path, wheels, "small==1.0\n")
    assert done.returncode != 0 and "Hashes are required" in done.stderr
    assert not (tmp_path / "installed" / "small.py").exists()


def install(folder: Path, wheels: Path, lock: str) -> subprocess.CompletedProcess[str]:
    (folder / "some.lock").write_text(lock)
    command = [str(INSTALL), str(folder / "some.lock"), sys.executable, "--target"]
    options = [str(folder / "installed"), "--no-index", "--find-links", str(wheels)]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
