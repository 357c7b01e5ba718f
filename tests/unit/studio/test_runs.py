"""The list of runs, from their files alone."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.cli.test_running import leave
from trinity.run.local.reaper import JobLock
from trinity.studio.runs import (
    RunDirectoryState,
    describe_run,
    find_runs,
    list_runs,
    missing_places,
)

PLAN = {
    "label": "sums/first",
    "stages": [
        {"name": "sft", "total_train_steps": 40},
        {"name": "rft", "total_train_steps": 100},
    ],
}


def a_run(root: Path, name: str = "sums/first", began: float = 1_000.0) -> Path:
    directory = root / name
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(PLAN))
    os.utime(directory / "config.json", (began, began))
    return directory


def test_runs_are_found_at_and_below_the_places_the_newest_first(tmp_path: Path) -> None:
    old, new = a_run(tmp_path, began=1.0), a_run(tmp_path, "sums/group/second", began=2.0)
    assert find_runs([tmp_path]) == [new, old]
    assert find_runs([old]) == [old]
    assert find_runs([old, tmp_path]) == [new, old]


def test_a_run_shows_the_last_stage_that_has_a_checkpoint(tmp_path: Path) -> None:
    job = a_run(tmp_path)
    assert (describe_run(job).stage, describe_run(job).step) == ("sft", None)
    for name in (
        "sft/checkpoints/step-40-1",
        "rft/checkpoints/step-25-1",
        "rft/checkpoints/step-50-2",
    ):
        (job / "stages" / name).mkdir(parents=True)
    entry = describe_run(job)
    assert (entry.label, entry.stage, entry.step, entry.total_steps) == (
        "sums/first",
        "rft",
        50,
        100,
    )


def test_states_come_from_the_lock_and_the_summary(tmp_path: Path) -> None:
    job = a_run(tmp_path)
    assert describe_run(job).state is RunDirectoryState.STOPPED
    lock = JobLock.acquire(job)
    assert describe_run(job).state is RunDirectoryState.CHANGING
    lock.release()
    lock = JobLock.acquire(job, only_views=True)
    assert describe_run(job).state is RunDirectoryState.STOPPED
    lock.release()


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    job = a_run(tmp_path)
    leave(job, "failed", "the grader is broken")
    (job / "config.json").write_text(json.dumps(PLAN))
    os.utime(job / "config.json", (1.0, 1.0))
    entry = describe_run(job)
    assert (entry.state, entry.reason) == (RunDirectoryState.FAILED, "the grader is broken")


def test_those_that_need_someone_come_first(tmp_path: Path) -> None:
    done, broken = a_run(tmp_path, "a/done", began=9.0), a_run(tmp_path, "a/broken", began=1.0)
    leave(done, "finished")
    os.utime(done / "config.json", (9.0, 9.0))
    (done / "config.json").write_text(json.dumps(PLAN))
    os.utime(done / "config.json", (9.0, 9.0))
    (broken / "config.json").write_text("{")
    stopped = a_run(tmp_path, "a/stopped", began=5.0)
    assert [entry.directory for entry in list_runs([tmp_path])] == [stopped, done, broken]


@pytest.mark.parametrize("content", ["", "{", "{}", '{"label": 3}', "[]", "\x00"])
def test_a_run_that_cannot_be_read_says_so_and_hides_no_other(tmp_path: Path, content: str) -> None:
    a_run(tmp_path)
    (a_run(tmp_path, "sums/broken") / "config.json").write_text(content)
    entries = {entry.label: entry for entry in list_runs([tmp_path])}
    assert entries["sums/first"].state is RunDirectoryState.STOPPED
    broken = entries["sums/broken"]
    assert broken.state is RunDirectoryState.UNREADABLE
    assert "cannot read" in broken.reason


def test_places_without_runs_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    job = a_run(tmp_path / "root")
    said = list(missing_places([tmp_path / "empty", tmp_path / "file", job, tmp_path / "root"]))
    assert [line.split(":")[0] for line in said] == [
        f"no run was started below {tmp_path / 'empty'}",
        f"{tmp_path / 'file'} is not a directory",
    ]


NOBODY = 65_534


@contextmanager
def unreadable(name: str) -> Iterator[Path]:
    """A root with a folder that its reader may not read; root itself may read everything."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        a_run(root)
        a_run(root, "closed/second")
        root.chmod(0o755)
        (root / name).chmod(0)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(NOBODY)
        try:
            yield root
        finally:
            if is_root:
                os.seteuid(0)
            (root / name).chmod(0o755)


@pytest.mark.parametrize("name", ["closed", "closed/second"])
def test_a_folder_that_may_not_be_read_is_named_and_hides_no_run(name: str) -> None:
    with unreadable(name) as root:
        assert [entry.label for entry in list_runs([root])] == ["sums/first"]
        [said] = missing_places([root])
        assert said.startswith(f"{root / name} may not be read by the user who started Studio")


def test_a_root_that_may_not_be_read_is_named() -> None:
    with unreadable("") as root:
        assert list_runs([root, root / "closed"]) == []
        said = list(missing_places([root, root / "closed"]))
        assert [line.partition(" may ")[0] for line in said] == [str(root), str(root / "closed")]


def test_a_readable_root_names_no_folder(tmp_path: Path) -> None:
    """The control."""
    a_run(tmp_path)
    (tmp_path / "sums" / "first" / "stages" / "rft").mkdir(parents=True)
    assert list(missing_places([tmp_path])) == []
