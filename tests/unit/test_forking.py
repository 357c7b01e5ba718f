"""Programs of a stack that are forked run as started ones do, and so do those that they start."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.forking.programs import ALSO_TAKEN_ON, SPAWNED, acts_at_import, program_of
from tests.support.forking.starts import close_images, forked_programs, real_starts
from tests.support.telling import CODE, IMPORTED_BEFORE
from trinity.runtime.process.box import OPEN_BOX
from trinity.runtime.process.child_process import OWN_IDENTITY

TELLING = "tests.support.telling"
COMMAND = (sys.executable, "-P", "-m", TELLING)


def given() -> dict[str, str]:
    """Variables for a program: those of now, since libraries that other tests import set some."""
    return {**{k: v for k, v in os.environ.items() if k != "HOME"}, "GIVEN": "by the test"}


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[None]:
    """The process that has imported the program and one more module."""
    yield
    close_images()


def tell(*words: str, cwd: Path, env: Mapping[str, str] | None = None, **more: Any) -> list[Any]:
    """Returns what each program was given and who it is: the first one and those below it."""
    done = subprocess.run(
        [*OWN_IDENTITY.command([*COMMAND, *words], death_signal=signal.SIGKILL)],
        input="typed",
        cwd=cwd,
        env=given() if env is None else env,
        capture_output=True,
        text=True,
        **more,
    )
    assert done.returncode == CODE, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def forked(modules: tuple[str, ...] = (TELLING, IMPORTED_BEFORE)) -> Any:
    return forked_programs(modules, programs=(TELLING,))


@pytest.mark.parametrize("leads_session", [False, True])
def test_each_gets_what_a_started_program_gets(tmp_path: Path, leads_session: bool) -> None:
    reading, writing = os.pipe()
    more: dict[str, Any] = {"start_new_session": leads_session, "pass_fds": [writing]}
    started = tell("below", "b c", cwd=tmp_path, **more)
    with forked():
        found = tell("below", "b c", cwd=tmp_path, **more)
        with real_starts():
            [[_, not_forked]] = tell(cwd=tmp_path)
    os.close(reading)
    os.close(writing)
    as_started = [told for told, _ in started]
    assert len(as_started) == 3
    assert [told for told, _ in found] == as_started
    assert [who["forked"] for _, who in started] == [False] * 3
    assert [who["forked"] for _, who in found] == [True] * 3
    assert not not_forked["forked"]


def test_each_is_a_child_of_the_one_that_started_it(tmp_path: Path) -> None:
    with forked():
        (_, first), *below = tell("below", cwd=tmp_path)
    assert first["of"] == os.getpid()
    assert [who["of"] for _, who in below] == [first["is"]] * 2


def test_a_process_of_multiprocessing_gets_what_a_spawned_one_gets(tmp_path: Path) -> None:
    _, [started, parted] = tell("spawn", cwd=tmp_path)
    with forked():
        (_, first), [found, who] = tell("spawn", cwd=tmp_path)
    assert (parted["forked"], who["forked"], who["of"]) == (False, True, first["is"])
    for told in (started, found):
        *python, code, last = told.pop("shows words")  # with the numbers of descriptors
        assert (python, last) == ([sys.executable, "-P", "-c"], "--multiprocessing-fork")
        assert code.startswith("from multiprocessing.spawn import spawn_main; spawn_main(")
    assert found == started


def test_one_that_raises_ends_with_its_traceback() -> None:
    command = [*COMMAND, "raise"]
    with forked():
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ValueError: meant" in done.stderr


def test_one_at_a_terminal_writes_to_it() -> None:
    ours, theirs = pty.openpty()
    with forked():
        done = subprocess.run(COMMAND, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = os.read(ours, 65536).decode()
    os.close(ours)
    assert done.returncode == CODE, written
    assert json.loads(written)[1]["forked"]


def test_a_killed_one_leaves_nothing() -> None:
    command = [*COMMAND, "wait"]
    with (
        forked(),
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline()
        [helper] = psutil.Process(process.pid).children()
        process.kill()
        assert process.stdout.read() == b""
    assert process.returncode == -signal.SIGKILL
    psutil.wait_procs([helper], timeout=20)
    assert not helper.is_running() or helper.status() == psutil.STATUS_ZOMBIE


def test_a_variable_that_acts_at_import_leads_to_a_real_start(tmp_path: Path) -> None:
    with forked():
        [[_, who]] = tell(cwd=tmp_path, env={**given(), "HF_HOME": "/elsewhere"})
    assert not who["forked"]


@pytest.mark.parametrize(
    ("given", "image", "acting"),
    [
        ({"A": "1"}, {}, []),
        ({"OMP_NUM_THREADS": "1"}, {}, []),
        ({"OMP_NUM_THREADS": "2"}, {}, ["OMP_NUM_THREADS"]),
        ({}, {"OMP_NUM_THREADS": "2"}, ["OMP_NUM_THREADS"]),
        ({"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, ["OMP_NUM_THREADS"]),
        ({"PYTHONPATH": "/a", "PYTHONHASHSEED": "1"}, {}, ["PYTHONHASHSEED"]),
        ({"LD_PRELOAD": "/a.so", "VLLM_USE_V1": "1"}, {}, ["LD_PRELOAD", "VLLM_USE_V1"]),
    ],
)
def test_variables_are_compared_with_those_of_the_imports(
    given: dict[str, str], image: dict[str, str], acting: list[str]
) -> None:
    assert acts_at_import(given, image) == acting


def test_an_engine_may_be_given_what_its_front_end_sets_for_it() -> None:
    given = {"LD_PRELOAD": "/a.so", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "VLLM_USE_V1": "1"}
    assert acts_at_import(given, {}, ALSO_TAKEN_ON[SPAWNED]) == ["VLLM_USE_V1"]


def test_only_our_modules_are_forked_and_not_what_must_be_executed() -> None:
    def is_forked(*words: str) -> bool:
        return program_of(words) is not None

    ours = [sys.executable, "-P", "-m", "services.buffer"]
    assert is_forked(*ours)
    assert is_forked(sys.executable, "-m", "trinity.cli.main", "run")
    assert is_forked(*OWN_IDENTITY.command(ours, death_signal=9))
    assert not is_forked(*OPEN_BOX.command(ours, death_signal=9))
    assert not is_forked(sys.executable, "-m", "mlflow")
    assert not is_forked(sys.executable, "-c", "pass")
    spawned = (
        "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
    )
    assert is_forked(sys.executable, "-P", "-c", spawned, "--multiprocessing-fork")
    assert not is_forked(sys.executable, "-X", "dev", "-c", spawned, "--multiprocessing-fork")
    assert not is_forked(sys.executable, "-c", f"{spawned}; pass", "--multiprocessing-fork")
    assert not is_forked("/bin/sh", "-P", "-m", "services.buffer")
    assert not is_forked(sys.executable, "-P", "-m", "trinity.operators.worker")
