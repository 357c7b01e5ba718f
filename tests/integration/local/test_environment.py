"""A run ends well wherever it is started: by whom, from where, behind what."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trinity.runtime.process.child_process import Identity, module_command

pytestmark = pytest.mark.timeout(300)

REPOSITORY = Path(__file__).parents[3]
PACKAGES = ("trinity", "services", "tests")
NOBODY = Identity("namespace", 65_534, 65_534)
SECONDS = 200
FILES = ("random.py", "services/__init__.py", "trinity/__init__.py", "grpc.py")


class Start:
    """A way to start a run: its folder, its variables, the command, the installation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installation = REPOSITORY
        self.environment = dict(os.environ)
        self.wrap: Callable[[list[str]], list[str]] = list

    def run(self) -> str:
        """Runs to the end; returns what was printed."""
        work = self.folder / "work"
        work.mkdir(parents=True, exist_ok=True)
        self.environment["PYTHONPATH"] = str(self.installation)
        command = module_command("tests.integration.local.small_run", str(self.folder / "run"))
        done = subprocess.run(
            self.wrap(command),
            cwd=work,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    def by_a_normal_user(self) -> None:
        """Becomes another user than root in a namespace; files stay those of the tester."""
        if os.geteuid() == 0:
            self.wrap = lambda command: NOBODY.command(command, death_signal=signal.SIGKILL)

    def from_a_read_only_copy(self) -> None:
        """Runs from a copy into which nothing can be written, not even compiled files."""
        self.installation = self.folder / "installation"
        for package in PACKAGES:
            skipped = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / package, self.installation / package, ignore=skipped)
        set_writable(self.installation, False)

    def without_home(self) -> None:
        """Leaves out the variables that name the user and a home."""
        for name in ("HOME", "USER", "LOGNAME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
            self.environment.pop(name, None)

    def behind_a_proxy(self) -> None:
        """Names a proxy that nothing can reach."""
        for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
            self.environment[name] = "http://127.0.0.1:9"

    def among_files_that_hide_modules(self) -> None:
        """Fills the current folder with files that fail when they are imported."""
        for name in FILES:
            file = self.folder / "work" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("raise SystemExit('the file of the current folder was imported')\n")


def set_writable(folder: Path, is_writable: bool) -> None:
    """Gives or takes the right to write, for everything below a folder and the folder."""
    for place, _, files in os.walk(folder):
        for path in (Path(place), *(Path(place, name) for name in files)):
            mode = path.stat().st_mode & 0o555
            path.chmod(mode | 0o200 if is_writable else mode)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    folder = tmp_path / "a folder with spaces, ümlauts and 'quotes'"
    folder.mkdir()
    yield Start(folder)
    set_writable(folder, True)


CONDITIONS = (
    Start.by_a_normal_user,
    Start.from_a_read_only_copy,
    Start.without_home,
    Start.behind_a_proxy,
    Start.among_files_that_hide_modules,
)


def test_a_run_ends_well_under_all_of_them_at_once(start: Start) -> None:
    for condition in CONDITIONS:
        condition(start)
    assert "ran as 0" not in start.run()
    written = list(start.installation.rglob("__pycache__"))
    assert written == []


@pytest.mark.thorough
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda condition: condition.__name__)
def test_a_run_ends_well_under_each(start: Start, condition: Callable[[Start], None]) -> None:
    condition(start)
    assert "ran as" in start.run()


def test_a_read_only_copy_cannot_be_written_to(start: Start) -> None:
    """The control: without rights of root, the copy refuses a file."""
    start.by_a_normal_user()
    start.from_a_read_only_copy()
    command = ["/bin/sh", "-c", 'touch "$0/trinity/written"', str(start.installation)]
    assert subprocess.run(start.wrap(command), capture_output=True).returncode != 0
