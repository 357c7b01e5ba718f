"""What a person does at the terminal while a run goes on."""

import os
import pty
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import REPOSITORY, Launch

pytestmark = pytest.mark.timeout(300)


def test_a_trial_ends_early_under_a_name_of_its_own_and_shows_its_status(launch: Launch) -> None:
    run = launch("trial")
    trial = run.job_dir.with_name("trial-max-steps-3")
    run.start("--max-steps", "3")
    run.wait_until(lambda: "trainer: loading the model" in run.text, "word of the loading")
    run.wait_until(lambda: "[warmup] started" in run.text, "the first stage")
    status = run.ask("status")
    assert run.wait() == 0, run.text
    assert status.returncode == 0, status.stderr
    for part in ("e2e/trial-max-steps-3", "warmup", "rft", "trainer", "explorer"):
        assert part in status.stdout
    assert "6 train steps" in run.text
    assert (trial / "summary.json").exists()
    assert not run.job_dir.exists()


@pytest.mark.parametrize("presses", [1, 3])
def test_ctrl_c_while_the_stack_starts_stops_in_order(launch: Launch, presses: int) -> None:
    run = launch(f"pressed-{presses}")
    run.start()
    run.wait_until(lambda: "starting the broker" in run.text, "the start")
    for _ in range(presses):
        run.signal(signal.SIGINT)
    assert run.wait() == 130, run.text
    assert "stopped in order; go on with:" in run.text
    assert "Traceback" not in run.text
    assert run.left_running() == []


def test_pressing_ctrl_c_again_does_not_cut_the_stop_short(launch: Launch) -> None:
    run = launch("impatient")
    run.start()
    run.wait_until(lambda: "[warmup] step" in run.text, "a step")
    run.signal(signal.SIGINT)
    run.wait_until(lambda: "stopping the services" in run.text, "the stop")
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run.text
    assert "Traceback" not in run.text
    assert run.left_running() == []


def test_a_terminal_shows_a_panel(launch: Launch, tmp_path: Path) -> None:
    run = launch("panel")
    shown = tmp_path / "screen"
    ours, theirs = pty.openpty()
    with shown.open("wb") as kept:
        process = subprocess.Popen(
            run.command("run", "--max-steps", "2"),
            cwd=REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            while data := _read(ours):
                kept.write(data)
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                psutil.Process(process.pid).kill()
            os.close(ours)
    text = shown.read_bytes().decode(errors="replace")
    for part in ("e2e/panel-max-steps-2", "warmup", "rft", "2/2", "reward", "all services answer"):
        assert part in text


def _read(terminal: int) -> bytes:
    """The end of what the other side writes is an error on Linux."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
