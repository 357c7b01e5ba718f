"""Files that must not be read are not, however they are named."""

import os
from pathlib import Path

import pytest

from services.buffer.tasksets.row_sources import check_path, open_allowed
from trinity.errors import UserError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "allowed" / "deep").mkdir(parents=True)
    (tmp_path / "secret.jsonl").write_text('{"password": 1}\n')
    (tmp_path / "allowed" / "rows.jsonl").write_text('{"prompt": 1}\n')
    return tmp_path / "allowed"


def test_a_file_inside_of_the_roots_is_read_through_a_link_as_well(root: Path) -> None:
    (root / "deep" / "link.jsonl").symlink_to(root / "rows.jsonl")
    for file in (root / "rows.jsonl", root / "deep" / "link.jsonl"):
        with open_allowed(file, [str(root)]) as stream:
            assert stream.read() == b'{"prompt": 1}\n'


def test_paths_and_links_that_lead_out_are_refused(root: Path) -> None:
    (root / "link.jsonl").symlink_to(root.parent / "secret.jsonl")
    (root / "up").symlink_to(root.parent)
    for path in ("link.jsonl", "../secret.jsonl", "up/secret.jsonl", "deep/../../secret.jsonl"):
        with pytest.raises(UserError, match="lies outside of"):
            open_allowed(root / path, [str(root)])
    with pytest.raises(UserError, match=r"link\.jsonl leads to .*/secret\.jsonl, which"):
        check_path(str(root / "link.jsonl"), [str(root)])
    with pytest.raises(UserError, match="lies outside of"):
        check_path(f"{root}-other/rows.jsonl", [str(root)])


def test_devices_pipes_and_the_kernel_s_files_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    with pytest.raises(UserError, match="is a FIFO"):
        open_allowed(root / "pipe.jsonl", [str(root)])
    for path in ("/dev/zero", "/proc/self/environ", "/sys/kernel"):
        (root / "kernel.jsonl").unlink(missing_ok=True)
        (root / "kernel.jsonl").symlink_to(path)
        with pytest.raises(UserError, match="which holds no data"):
            open_allowed(root / "kernel.jsonl", ["/"])


def test_a_file_that_is_swapped_after_the_check_is_not_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = root / "rows.jsonl"

    def swap(path: str, *arguments: int) -> int:
        file.unlink()
        file.symlink_to(root.parent / "secret.jsonl")
        return opened(path, *arguments)

    opened = os.open
    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(OSError, match="symbolic links"):
        open_allowed(file, [str(root)])
