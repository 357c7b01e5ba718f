"""The environment of an image, made from its Dockerfile's own files by its own script."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
INSTALL_SECONDS = 3_600.0
IMPORT_SECONDS = 600.0
IMPORT_ALL = Path(__file__).with_name("import_all.py")
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """An installed image."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def megabytes(self) -> float:
        """What its files take on disk."""
        files = [path.lstat() for path in self.folder.rglob("*")]
        return sum(file.st_blocks * 512 for file in files) / MEGABYTE

    def can_import(self, module: str) -> bool:
        """In a fresh process, away from this checkout."""
        return self._run(f"import {module}").returncode == 0

    def import_all(self, service: str) -> str:
        """What the import of all that the service needs says, empty where all is there."""
        done = self._run(IMPORT_ALL.read_text(), service)
        return done.stderr if done.returncode else ""

    def _run(self, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run(
            [str(self.python), "-c", code, *arguments],
            cwd=self.folder,
            env=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=IMPORT_SECONDS,
        )


def install(service: str, folder: Path, variant: str = "") -> Environment:
    """Copy what the Dockerfile copies, then run what it runs."""
    source, environment = folder / "src", folder / "venv"
    for given, target in copied(service):
        _copy(REPOSITORY / given, source, target)
    lock = REPOSITORY / "requirements" / f"{service}{variant and f'-{variant}'}.lock"
    done = subprocess.run(
        [str(REPOSITORY / "deploy" / "docker" / "install.sh"), str(lock), str(environment)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return Environment(environment)


def copied(service: str) -> list[tuple[str, str]]:
    """The project's files that the first stage takes, and where to below its working directory."""
    text = (REPOSITORY / "deploy" / "docker" / f"{service}.Dockerfile").read_text()
    _, stage, _ = text.split("\nFROM ")
    pairs = re.findall(r"^COPY (\S+) (\S+)$", stage, re.MULTILINE)
    return [(given, target) for given, target in pairs if not target.startswith("/")]


def variables(service: str) -> dict[str, str]:
    """What the second stage sets."""
    text = (REPOSITORY / "deploy" / "docker" / f"{service}.Dockerfile").read_text()
    (line,) = re.findall(r"^ENV (.+)$", text.replace("\\\n", ""), re.MULTILINE)
    return dict(pair.split("=", 1) for pair in line.split())


def _copy(given: Path, source: Path, target: str) -> None:
    place = source / target
    if given.is_dir():
        shutil.copytree(given, place, ignore=shutil.ignore_patterns("__pycache__"))
        return
    into = place if target.endswith("/") else place.parent
    into.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(given, into / given.name)
