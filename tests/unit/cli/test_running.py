"""Whoever asks about a run that does not go on hears what became of it."""

import os
from pathlib import Path

import pytest

from tests.unit.progress.builders import empty_view
from trinity.errors import UserError
from trinity.run.local.reaper import JobLock
from trinity.run.progress.summary import summarize, write_summary
from trinity.run.runs import active_stack, find_job_dir, running_stack


def asked(job_dir: Path) -> str:
    with pytest.raises(UserError) as refused:
        active_stack(job_dir)
    return str(refused.value)


def leave(job_dir: Path, state: str, reason: str = "") -> None:
    """What a run that ended so leaves."""
    (job_dir / "config.json").write_text("{}")
    summary = summarize(
        empty_view(), label="a/b", state=state, reason=reason, starts=1, seconds={"total": 9.0}
    )
    write_summary(summary, job_dir / "summary.json")


def test_where_nothing_was_started_another_place_is_to_be_named(tmp_path: Path) -> None:
    said = "none was started there; give its --config or its --job-dir"
    assert asked(tmp_path) == f"no run is going on in {tmp_path}: {said}"


def test_a_run_that_is_being_started_is_asked_again_later(tmp_path: Path) -> None:
    leave(tmp_path, "failed")
    lock = JobLock.acquire(tmp_path)
    assert f"process {os.getpid()} starts or stops one; ask again" in asked(tmp_path)
    lock.release()
    assert "it has failed" in asked(tmp_path)


def test_a_stopped_run_that_is_viewed_has_stopped(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    lock = JobLock.acquire(tmp_path, only_views=True)
    assert "it has stopped; `trinity run` goes on with it" in asked(tmp_path)
    assert running_stack(tmp_path) is None
    lock.release()


def test_a_run_that_was_stopped_goes_on_with_the_same_command(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert "it has stopped; `trinity run` goes on with it" in asked(tmp_path)


def test_a_run_that_ended_says_how(tmp_path: Path) -> None:
    leave(tmp_path, "failed", "the grader is broken")
    assert "it has failed (the grader is broken)" in asked(tmp_path)
    leave(tmp_path, "finished")
    assert "it is finished; `trinity run` shows its results again" in asked(tmp_path)


def test_a_run_that_went_on_after_it_had_failed_and_was_stopped_has_not_failed(
    tmp_path: Path,
) -> None:
    leave(tmp_path, "failed", "the grader is broken")
    (tmp_path / "summary.json").unlink()  # as every start does
    assert "it has stopped" in asked(tmp_path)


def test_a_copied_run_says_how_it_ended_whatever_the_times_of_its_files(tmp_path: Path) -> None:
    leave(tmp_path, "finished")
    later = (tmp_path / "summary.json").stat().st_mtime + 10
    os.utime(tmp_path / "config.json", (later, later))
    assert "it is finished" in asked(tmp_path)


def test_without_a_name_the_only_run_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path))
    with pytest.raises(UserError, match="no run was started below"):
        find_job_dir(None, None)
    (tmp_path / "sums/first").mkdir(parents=True)
    leave(tmp_path / "sums/first", "finished")
    assert find_job_dir(None, None) == tmp_path / "sums/first"


def test_of_several_runs_that_have_stopped_the_newest_is_named_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path))
    for hour, name in enumerate(("b", "a", "c")):
        (tmp_path / "sums" / name).mkdir(parents=True)
        leave(tmp_path / "sums" / name, "finished")
        os.utime(tmp_path / "sums" / name / "config.json", (hour, hour))
    newest = ", ".join(str(tmp_path / "sums" / name) for name in ("c", "a", "b"))
    with pytest.raises(UserError, match=newest):
        find_job_dir(None, None)


def test_a_run_that_serves_the_model_of_another_is_not_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path))
    for name in ("first", "first-serve"):
        (tmp_path / "sums" / name).mkdir(parents=True)
        leave(tmp_path / "sums" / name, "finished")
    assert find_job_dir(None, None) == tmp_path / "sums/first"


def test_a_run_that_begins_is_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_CHECKPOINT_ROOT_DIR", str(tmp_path))
    (tmp_path / "sums/first").mkdir(parents=True)
    lock = JobLock.acquire(tmp_path / "sums/first")
    with pytest.raises(UserError, match="starts or stops one; ask again"):
        active_stack(find_job_dir(None, None))
    lock.release()
