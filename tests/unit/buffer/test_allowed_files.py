"""Files that must not be read are not, however they are named."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from services.buffer.tasksets.library import content_identity
from services.buffer.tasksets.row_sources import RowSource, check_path, open_allowed
from trinity.errors import PreconditionFailed, UserError


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
    with pytest.raises(UserError, match=r"link\.jsonl leads to a place that lies outside"):
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


def source(path: Path, roots: Sequence[Path], split: str = "train", subset: str = "") -> RowSource:
    return RowSource(
        kind="file",
        place=str(path),
        split=split,
        subset_name=subset or None,
        roots=tuple(map(str, roots)),
    )


def refusal(path: Path, roots: Sequence[Path], split: str = "train", subset: str = "") -> str:
    with pytest.raises(PreconditionFailed) as error:
        content_identity("sums", source(path, roots, split, subset), "an experiment")
    return str(error.value)


@pytest.fixture
def others(root: Path) -> Path:
    """Another tenant's directory, beside the allowed one."""
    (root.parent / "others" / "train").mkdir(parents=True)
    (root.parent / "others" / "their-secret-names.jsonl").write_text('{"prompt": 1}\n')
    return root.parent / "others"


@pytest.mark.parametrize("subset", ["../others", "{others}", "deep/../../others", "link"])
def test_a_subset_or_split_lists_no_other_directory(root: Path, others: Path, subset: str) -> None:
    (root / "link").symlink_to(others)
    elsewhere = subset.format(others=others)
    for refused in (refusal(root, [root], subset=elsewhere), refusal(root, [root], elsewhere)):
        assert "lies outside of" in refused
        assert "secret" not in refused
    everything = refusal(others, [others], "test")
    assert "their-secret-names" in everything


@pytest.mark.parametrize("name", ["data", "state.json", "dataset_dict.json", "train"])
def test_a_link_in_the_layout_of_a_dataset_is_not_followed_out(
    root: Path, others: Path, name: str
) -> None:
    (others / "state.json").write_text(
        '{"_data_files": [{"filename": "their-secret-names.jsonl"}]}'
    )
    (others / "dataset_dict.json").write_text("{}")
    (root / name).symlink_to(others / name if "." in name else others)
    refused = refusal(root, [root])
    assert "lies outside of" in refused
    assert "their-secret" not in refused


@pytest.mark.parametrize("filename", ["../secret.jsonl", "{others}/x.jsonl", "deep/x.jsonl"])
def test_a_saved_dataset_names_files_of_its_own_directory_alone(
    root: Path, others: Path, filename: str
) -> None:
    named = filename.format(others=others)
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": named}]}))
    assert "is damaged" in refusal(root, [root])


def test_a_refusal_does_not_tell_what_is_there(root: Path, others: Path) -> None:
    (others / "link.jsonl").symlink_to(root.parent / "secret.jsonl")
    told = {
        refusal(others / name, [root]).replace(name, "NAME")
        for name in ("their-secret-names.jsonl", "nothing.jsonl", "link.jsonl", "train")
    }
    assert len(told) == 1
    assert "there is no file" in refusal(root / "nothing.jsonl", [root])


def test_without_roots_no_file_is_read(root: Path) -> None:
    assert "reads no files for this tenant" in refusal(root / "rows.jsonl", [])
    content_identity("sums", source(root / "rows.jsonl", [root]), "an experiment")
