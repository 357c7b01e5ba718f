"""Engines' sockets lie in the job's own folder, which a stack finds and leaves empty."""

import socket
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.run.local.files import (
    VARIABLE,
    make_socket_folder,
    remove_socket_folder,
    socket_folder,
    socket_variables,
)

NAME = "00000000-0000-0000-0000-000000000000"


def left_by_a_killed_engine(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / NAME))
    return folder / NAME


@pytest.mark.parametrize("job", ["run", "a" * 60 + "/" + "b" * 60])
def test_a_socket_can_be_made_however_long_the_jobs_path_is(tmp_path: Path, job: str) -> None:
    job_dir = tmp_path / job
    make_socket_folder(job_dir)
    left = left_by_a_killed_engine(socket_folder(job_dir))
    assert left.is_socket()
    make_socket_folder(job_dir)
    assert list(socket_folder(job_dir).iterdir()) == []
    assert socket_folder(job_dir).stat().st_mode & 0o777 == 0o700
    remove_socket_folder(job_dir)
    assert not socket_folder(job_dir).exists()


def test_a_short_path_is_the_jobs_own_and_long_ones_differ() -> None:
    assert socket_folder(Path("/jobs/a")) == Path("/jobs/a/infra/sockets")
    one, other = (socket_folder(Path("/jobs") / ("x" * 100) / name) for name in "ab")
    assert one != other
    assert max(len(f"{one}/{NAME}"), len(f"{other}/{NAME}")) <= 107


def test_what_a_person_chose_stays() -> None:
    assert socket_variables(Path("/jobs/a"), {}) == {VARIABLE: "/jobs/a/infra/sockets"}
    assert socket_variables(Path("/jobs/a"), {VARIABLE: "/elsewhere"}) == {}


def test_a_folder_that_cannot_be_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("trinity.run.local.files.tempfile.gettempdir", lambda: tmp_path / "file")
    with pytest.raises(UserError, match=r"cannot make .* for sockets"):
        make_socket_folder(Path("/jobs") / ("x" * 100))
