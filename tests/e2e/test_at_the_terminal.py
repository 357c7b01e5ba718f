"""What a person does at the terminal while a run goes on."""

import os
import pty
import signal
import subprocess

import pytest

from tests.e2e.conftest import REPOSITORY, Launch

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_while_the_stack_starts_stops_in_order(launch: Launch, presses: int) -> None:
    run = launch(f"pressed-{presses}")
    run.start()
    run.wait_until(lambda: "starting the broker" in run.text, "the start")
    for _ in range(presses):
        run.signal(signal.SIGINT)
    assert run.wait() == 130, run.text
    assert "stopped gracefully; resume with:" in run.text
    assert "Traceback" not in run.text
    assert run.left_running() == []


def test_a_trial_on_a_terminal_shows_a_panel_and_its_status_elsewhere(launch: Launch) -> None:
    run = launch("trial")
    with OnTerminal(run.command("run", "--max-steps", "2")) as terminal:
        terminal.read_until("trainer: loading the model")  # it has told of itself by then
        status = run.ask("status")
        terminal.read_until_end()
        assert terminal.exit_code() == 0, terminal.text
    assert status.returncode == 0, status.stderr
    for part in ("e2e/trial-max-steps-2", "warmup", "rft", "trainer", "explorer"):
        assert part in status.stdout
    for part in ("trainer: loading the model", "e2e/trial-max-steps-2", "2/2", "reward"):
        assert part in terminal.text
    assert "4 train steps" in terminal.text
    assert (run.job_dir.with_name("trial-max-steps-2") / "summary.json").exists()
    assert not run.job_dir.exists()


class OnTerminal:
    """A command whose input and output are a terminal."""

    def __init__(self, command: list[str]) -> None:
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.text = ""

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)

    def read_until(self, part: str) -> None:
        """Read until something is shown."""
        while part not in self.text:
            assert self._read(), f"ended without {part!r}:\n{self.text}"

    def read_until_end(self) -> None:
        """Read all that comes."""
        while self._read():
            pass

    def exit_code(self) -> int:
        """How it ended."""
        return self._process.wait(60)

    def _read(self) -> bool:
        """The end of what the other side writes is an error on Linux."""
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
