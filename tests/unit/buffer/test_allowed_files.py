"""Files that must not be read are not, however they are named."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from services.buffer.tasksets.allowed_files import AllowedFiles
from services.buffer.tasksets.library import content_identity
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.row_tables import read_table
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
        with AllowedFiles([str(root)]).open(file) as stream:
            assert stream.read() == b'{"prompt": 1}\n'


def test_paths_and_links_that_lead_out_are_refused(root: Path) -> None:
    (root / "link.jsonl").symlink_to(root.parent / "secret.jsonl")
    (root / "up").symlink_to(root.parent)
    for path in ("link.jsonl", "../secret.jsonl", "up/secret.jsonl", "deep/../../secret.jsonl"):
        with pytest.raises(UserError, match="lies outside of"):
            AllowedFiles([str(root)]).open(root / path)
    with pytest.raises(UserError, match=r"link\.jsonl leads to a place that lies outside"):
        AllowedFiles([str(root)]).open(root / "link.jsonl")
    with pytest.raises(UserError, match="lies outside of"):
        AllowedFiles([str(root)]).open(Path(f"{root}-other/rows.jsonl"))


def test_a_root_may_be_named_by_a_link_and_links_may_lead_to_another_root(root: Path) -> None:
    (root.parent / "named").symlink_to(root)
    other = root.parent / "second"
    other.mkdir()
    (root / "over.jsonl").symlink_to("../second/deep/../back.jsonl")
    (other / "deep").mkdir()
    (other / "back.jsonl").symlink_to(root.parent / "named" / "rows.jsonl")
    files = AllowedFiles([str(root.parent / "named"), str(other)])
    for path in (root / "over.jsonl", root.parent / "named" / "rows.jsonl", other / "back.jsonl"):
        with files.open(path) as stream:
            assert stream.read() == b'{"prompt": 1}\n'
    assert not AllowedFiles([str(root.parent / "no-such-root")]).has(root / "rows.jsonl")


def test_a_root_behind_a_link_that_a_tenant_could_make_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `/home/{tenant}/data`, if that tenant owns `/home/a` and links `data` elsewhere."""
    (root.parent / "data").symlink_to(root)
    with AllowedFiles([str(root.parent / "data")]).open(root.parent / "data" / "rows.jsonl"):
        pass
    if os.geteuid() == 0:
        os.chown(root.parent / "data", 1, -1, follow_symlinks=False)
    monkeypatch.setattr(os, "geteuid", lambda: 2)
    with pytest.raises(UserError, match="a link that is not the operator's"):
        AllowedFiles([str(root.parent / "data")]).open(root.parent / "data" / "rows.jsonl")


def test_links_in_a_circle_end(root: Path) -> None:
    (root / "a.jsonl").symlink_to("b.jsonl")
    (root / "b.jsonl").symlink_to(root / "a.jsonl")
    with pytest.raises(OSError, match=r"symbolic links.*a\.jsonl"):
        AllowedFiles([str(root)]).open(root / "a.jsonl")


def test_devices_pipes_and_the_kernel_s_files_are_refused(root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    with pytest.raises(UserError, match="is a FIFO"):
        AllowedFiles([str(root)]).open(root / "pipe.jsonl")
    for path in ("/dev/zero", "/proc/self/environ", "/sys/kernel"):
        (root / "kernel.jsonl").unlink(missing_ok=True)
        (root / "kernel.jsonl").symlink_to(path)
        with pytest.raises(UserError, match="which holds no data"):
            AllowedFiles(["/"]).open(root / "kernel.jsonl")


SWAPS = """
import os, sys
place, *targets = sys.argv[1:]
while True:
    for target in targets:
        os.symlink(target, place + ".next")
        os.rename(place + ".next", place)
"""
TRIES = 2_000


@contextmanager
def swapping(place: Path, *targets: Path) -> Iterator[None]:
    """Lets a process lead a link to one target and the other, as fast as it can."""
    place.symlink_to(targets[0])
    argv = [sys.executable, "-c", SWAPS, str(place), *map(str, targets)]
    with subprocess.Popen(argv) as process:
        try:
            yield
        finally:
            process.kill()


def resolved_twice(file: Path, root: Path) -> bytes:
    """What is read by asking for the path where the file is, and then whether that is allowed."""
    real = os.path.realpath(file)
    if not os.path.realpath(file).startswith(f"{root}/"):
        raise UserError("lies outside of")
    return Path(real).read_bytes()


def resolved_once(file: Path, root: Path) -> bytes:
    with AllowedFiles([str(root)]).open(file) as stream:
        return stream.read()


def tries(read: Callable[[Path, Path], bytes], file: Path, root: Path) -> Iterator[bytes | None]:
    """Yields what each try has read; None where it was refused."""
    while True:
        try:
            yield read(file, root)
        except UserError:
            yield None


@pytest.mark.parametrize("name", ["link.jsonl", "linked/rows.jsonl"])
def test_a_link_that_swaps_all_the_time_never_leads_out(root: Path, name: str) -> None:
    """The control asks twice, and gets the rows of another tenant sooner or later."""
    (root.parent / "other").mkdir()
    (root.parent / "other" / "rows.jsonl").write_text('{"password": 1}\n')
    targets = [root / "rows.jsonl", root.parent / "other" / "rows.jsonl"]
    place = root / name.partition("/")[0]
    if "/" in name:
        targets = [target.parent for target in targets]
    with swapping(place, *targets):
        assert any(b"password" in (got or b"") for got in tries(resolved_twice, root / name, root))
        seen = tries(resolved_once, root / name, root)
        got = [next(seen) for _ in range(TRIES)]
    assert set(got) == {b'{"prompt": 1}\n', None}


def test_a_database_that_swaps_all_the_time_is_the_allowed_one(root: Path) -> None:
    for file, prompt in ((root / "own.db", "own"), (root.parent / "other.db", "hidden")):
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE train (prompt TEXT)")
            connection.execute("INSERT INTO train VALUES (?)", [prompt])
            connection.commit()
    got = set()
    with swapping(root / "link.db", root / "own.db", root.parent / "other.db"):
        for _ in range(TRIES // 10):
            place = f"sqlite:///{root / 'link.db'}"
            table = RowSource(kind="sql", place=place, table="train", roots=(str(root),))
            try:
                got.add(str(list(read_table(table))))
            except UserError as error:
                assert "lies outside of" in str(error) or "changed while" in str(error)
    assert got == {"[{'prompt': 'own'}]"}


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
