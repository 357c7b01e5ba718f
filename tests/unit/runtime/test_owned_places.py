"""What is in a place of a user's and not ours stays, and is named."""

from pathlib import Path

import pytest

from trinity.config.checks.runtime import _check_writable
from trinity.errors import UserError
from trinity.runtime.owned_places import (
    MARK,
    check_folder,
    claim_folder,
    move_to_new,
    working_folder,
    write_new_file,
)


def test_a_folder_of_others_is_refused_and_one_of_ours_is_not(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").write_text("mine")
    for refuse in (check_folder, claim_folder):
        with pytest.raises(UserError, match=r"theirs holds thesis\.tex .*: give another"):
            refuse(tmp_path / "theirs", "give another")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["thesis.tex"]
    for name in ("new/below", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        claim_folder(tmp_path / name, "give another")
        (tmp_path / name / "made").touch()
        claim_folder(tmp_path / name, "give another")
        assert (tmp_path / name / MARK).is_file()


def test_a_file_or_a_link_to_nothing_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for name in ("file", "link"):
        with pytest.raises(UserError, match="not a folder"):
            claim_folder(tmp_path / name, "give another")


def test_the_check_refuses_a_run_s_directory_with_other_things(tmp_path: Path) -> None:
    _check_writable(tmp_path / "run")
    (tmp_path / "run").mkdir()
    _check_writable(tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds config\.json .* another `name`"):
        _check_writable(tmp_path / "run")


def test_parts_of_an_export_replace_nothing(tmp_path: Path) -> None:
    with working_folder(tmp_path / "out") as work:
        (work / "part").write_text("1")
        assert work.name == ".out.partial"
        move_to_new(work / "part", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with working_folder(tmp_path / "out") as work:
        (work / "part").touch()
        with pytest.raises(UserError, match="exists by now"):
            move_to_new(work / "part", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "1"


def test_parts_that_a_killed_process_left_go_and_what_others_called_so_stays(
    tmp_path: Path,
) -> None:
    left = tmp_path / ".out.partial"
    claim_folder(left, "")
    (left / "old").touch()
    with working_folder(tmp_path / "out") as work:
        assert [path.name for path in work.iterdir()] == [MARK]
    left.mkdir()
    (left / "mine").touch()
    with pytest.raises(UserError, match="holds mine"), working_folder(tmp_path / "out"):
        pass
    assert (left / "mine").exists()


def test_a_new_file_is_not_one_that_is_there(tmp_path: Path) -> None:
    write_new_file(tmp_path / "new.yaml", "a: 1", "give another name")
    with pytest.raises(UserError, match="exists: give another name"):
        write_new_file(tmp_path / "new.yaml", "b: 2", "give another name")
    assert (tmp_path / "new.yaml").read_text() == "a: 1"
