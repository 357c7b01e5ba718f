"""The wheel works without a checkout: examples, manifests, locks and contracts are in it."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from trinity.cli.first_steps import _requirements
from trinity.config.checks.packages import EXTRAS

REPOSITORY = Path(__file__).parents[3]
NAME = re.compile(r"^[\w.-]+")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", folder / "dist"], cwd=REPOSITORY, check=True)
    [wheel] = (folder / "dist").glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "packages")
    return folder / "packages"


def trinity(installed: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the wheel in a folder without a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-P", "-m", "trinity", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_an_example_is_written_checked_and_rendered(installed: Path, tmp_path: Path) -> None:
    assert trinity(installed, tmp_path, "example", "custom_reward").returncode == 0
    written = sorted(path.name for path in (tmp_path / "examples").iterdir())
    assert written == ["addition", "custom_reward"], "it uses the other one's data"
    config = "examples/addition/addition.yaml"
    checked = trinity(installed, tmp_path, "config", "check", config)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    words = ("deploy", "render", "-c", config, "--target", "k8s", "--output", "out")
    rendered = trinity(installed, tmp_path, *words)
    assert rendered.returncode == 0, rendered.stderr
    assert (tmp_path / "out" / "k8s").is_dir() or list((tmp_path / "out").rglob("*.yaml"))


def test_a_file_of_an_example_that_was_changed_stays(installed: Path, tmp_path: Path) -> None:
    trinity(installed, tmp_path, "example", "addition")
    changed = tmp_path / "examples" / "addition" / "addition.yaml"
    changed.write_text("mine")
    done = trinity(installed, tmp_path, "example", "addition")
    assert "addition.yaml is there and differs: it stays" in done.stdout
    assert changed.read_text() == "mine"


def test_the_wheel_holds_what_it_needs_and_nothing_that_a_run_made(installed: Path) -> None:
    shipped = installed / "trinity" / "shipped"
    assert sorted(path.name for path in shipped.iterdir()) == [
        *("deploy", "examples", "proto", "requirements")
    ]
    assert (shipped / "requirements" / "gpu.lock").is_file()
    assert not list(shipped.rglob("work")) and not list(shipped.rglob("node_modules"))
    assert not [path.name for path in installed.iterdir() if path.name in ("tests", "benchmarks")]


LIGHT = f"""
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name in {sorted({name for names in EXTRAS.values() for name in names})}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refused())
from trinity.cli.main import main
main()
"""
"""A command where no extra is installed."""


def test_manifests_secrets_and_certificates_need_no_extra(tmp_path: Path) -> None:
    config = str(REPOSITORY / "examples" / "addition" / "addition.yaml")

    def light(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-c", LIGHT, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for target in ("compose", "k8s", "nomad", "slurm"):
        done = light("deploy", "render", "-c", config, "--target", target, "-o", target)
        assert done.returncode == 0, done.stderr
    for words in (("deploy", "secrets", "secrets"), ("certs", "certs"), ("context", "list")):
        done = light(*words)
        assert done.returncode == 0, done.stderr
    needs_more = light("studio")
    assert needs_more.returncode == 2 and "trinity setup studio" in needs_more.stderr


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"explorer", "trainer"}))
def test_what_an_extra_names_is_in_the_locks(extra: str) -> None:
    locked = "".join(
        (REPOSITORY / "requirements" / f"{name}.lock").read_text() for name in ("build", "cpu")
    )
    names = [NAME.findall(requirement)[0].lower() for requirement in _requirements(extra)]
    assert names
    assert not [name for name in names if f"\n{name}==" not in locked]


def test_a_word_that_is_no_extra_is_refused_with_those_that_are(
    installed: Path, tmp_path: Path
) -> None:
    done = trinity(installed, tmp_path, "setup", "cuda")
    assert done.returncode == 2
    assert "there is no `cuda` to set up: one of cpu, gpu, database" in done.stderr
