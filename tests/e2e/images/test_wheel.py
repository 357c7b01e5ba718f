"""Two commands on an empty machine: `pip install WHEEL`, `trinity demo`. Needs a package index."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pythons import other_python

REPOSITORY = Path(__file__).parents[3]
INSTALL_SECONDS, DEMO_SECONDS = 1800, 3600
PYTHONS = ("python3.11", "python3.12", "python3.13")
CONFIG = "examples/addition/addition.yaml"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder], cwd=REPOSITORY, check=True)
    [path] = folder.glob("*.whl")
    return path


def install(wheel: Path, folder: Path, python: str) -> Path:
    """Installs the wheel into a new environment; returns the program `trinity`."""
    subprocess.run([other_python(python), "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", str(wheel)]
    subprocess.run(pip, check=True, timeout=INSTALL_SECONDS)
    return folder / "bin" / "trinity"


@pytest.mark.timeout(2 * INSTALL_SECONDS)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_light_part_works_on_each_python(wheel: Path, tmp_path: Path, python: str) -> None:
    program = install(wheel, tmp_path / "env", python)

    def said(*words: str) -> str:
        done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert said("--version").startswith("trinity ")
    said("example", "addition")
    assert "run `trinity setup cpu`" in said("config", "check", CONFIG)
    said("deploy", "render", "-c", CONFIG, "--target", "nomad", "--output", "rendered")
    said("deploy", "secrets", "secrets")
    python = str(tmp_path / "env" / "bin" / "python")
    client = [python, "-c", "import trinity.client, trinity.api.v1"]
    subprocess.run(client, cwd=tmp_path, check=True)
    said("setup", "export")
    subprocess.run([python, "-c", "import datasets, pyarrow"], check=True)
    for words in (("studio",), ("run", "--config", CONFIG)):
        done = subprocess.run([program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.timeout(INSTALL_SECONDS + DEMO_SECONDS)
def test_the_demo_needs_no_other_command(wheel: Path, tmp_path: Path) -> None:
    program = install(wheel, tmp_path / "env", "python3.11")
    done = subprocess.run(
        [program, "demo"], cwd=tmp_path, capture_output=True, text=True, timeout=DEMO_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "`trinity setup cpu` now installs them" in done.stdout
    assert "best" in done.stdout
