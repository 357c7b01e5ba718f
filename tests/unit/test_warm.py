"""A program that is forked from a process that has imported it runs as a started one does."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.warm import WarmProcess, run_warm, start_warm

PROGRAM = """
import json, os, sys, time

def main():
    given = [sys.argv[1:], os.getcwd(), os.environ["GIVEN"], "HOME" in os.environ]
    print(json.dumps(given), len(sys.stdin.read()))
    print("said", file=sys.stderr, flush=True)
    if "wait" in sys.argv:
        time.sleep(60)
    if "raise" in sys.argv:
        raise ValueError("meant")
    return 7

if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package whose `__main__` is that program."""
    name = f"warmed_{uuid.uuid4().hex}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "__main__.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    return name


@pytest.fixture
def env(program: str) -> Mapping[str, str]:
    """What the program gets, and its parent has not got."""
    del program  # sets a variable
    return {**{k: v for k, v in os.environ.items() if k != "HOME"}, "GIVEN": "by the test"}


@pytest.mark.parametrize("arguments", [["a", "b c"], []])
def test_it_gets_what_a_started_program_gets_and_ends_alike(
    program: str, env: Mapping[str, str], tmp_path: Path, arguments: list[str]
) -> None:
    started = subprocess.run(
        [sys.executable, "-P", "-m", program, *arguments],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = run_warm(program, *arguments, env=env, cwd=tmp_path)
    assert "by the test" in started.stdout
    assert (forked.returncode, forked.stdout, forked.stderr) == (
        started.returncode,
        started.stdout,
        started.stderr,
    )


def test_a_program_that_raises_ends_with_its_traceback(
    program: str, env: Mapping[str, str]
) -> None:
    done = run_warm(program, "raise", env=env)
    assert done.returncode == 1
    assert "ValueError: meant" in done.stderr


def test_a_variable_that_a_fork_cannot_take_on_is_refused(
    program: str, env: Mapping[str, str]
) -> None:
    with pytest.raises(AssertionError, match="PYTHONIOENCODING"):
        run_warm(program, env={**env, "PYTHONIOENCODING": "latin-1"})


def waiting(program: str, env: Mapping[str, str], log: Path) -> WarmProcess:
    """One that has begun."""
    with log.open("wb") as stream:
        process = start_warm(program, "wait", env=env, stdout=stream, stderr=stream)
    while not log.read_text():
        assert process.poll() is None
    return process


def test_it_has_a_process_of_its_own_that_signals_reach(
    program: str, env: Mapping[str, str], tmp_path: Path
) -> None:
    first, second = (waiting(program, env, tmp_path / name) for name in ("first", "second"))
    assert len({first.pid, second.pid, os.getpid()}) == 3
    with pytest.raises(subprocess.TimeoutExpired):
        first.wait(0.01)
    first.kill()
    assert first.wait(20) == -signal.SIGKILL
    assert second.poll() is None
    second.terminate()
    assert second.wait(20) == second.poll() == -signal.SIGTERM
