"""Which files belong to a path, a split and a subset."""

import gzip
from pathlib import Path

import datasets
import pytest

from trinity.config import data_rows
from trinity.config.data_files import find_data_files
from trinity.config.data_rows import count_rows, first_row
from trinity.errors import UserError


def names(root: Path, split: str, subset: str | None = None) -> list[str]:
    return [str(f.relative_to(root)) for f in find_data_files(str(root), split, subset)]


def touch(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_a_single_file_is_every_split(tmp_path: Path) -> None:
    touch(tmp_path, "test.jsonl")
    file = tmp_path / "test.jsonl"
    assert find_data_files(str(file), "train") == (file,)


def test_shards_of_a_split_come_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "data/train-1.parquet", "data/train-0.parquet", "data/test-0.parquet")
    assert names(tmp_path, "train") == ["data/train-0.parquet", "data/train-1.parquet"]


def test_shards_as_on_the_hub_go_before_what_is_beside_them(tmp_path: Path) -> None:
    shards = ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"]
    touch(tmp_path, "train.jsonl", "test.jsonl", *shards)
    assert names(tmp_path, "train") == shards
    assert names(tmp_path, "test") == ["test.jsonl"]


def test_a_split_as_files_of_two_kinds_here_and_in_data_is_refused(tmp_path: Path) -> None:
    touch(tmp_path, "train.jsonl", "data/train_more.json")
    assert names(tmp_path, "train") == ["train.jsonl", "data/train_more.json"]
    touch(tmp_path, "data/train.parquet")
    with pytest.raises(UserError, match=r"twice, as train.jsonl and as data/train.parquet: give"):
        names(tmp_path, "train")


def test_files_without_a_split_in_their_names_are_train(tmp_path: Path) -> None:
    touch(tmp_path, "a.jsonl", "README.md", ".hidden.json", "dataset_info.json")
    assert names(tmp_path, "train") == ["a.jsonl"]
    with pytest.raises(UserError, match="belongs to split `test`"):
        names(tmp_path, "test")


def test_a_subset_is_a_directory_and_so_may_a_split_be(tmp_path: Path) -> None:
    touch(tmp_path, "main/train/rows.jsonl", "main/test/rows.jsonl")
    assert names(tmp_path, "test", "main") == ["main/test/rows.jsonl"]


def test_default_is_the_data_of_a_folder_without_subsets(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    assert names(tmp_path, "train", "default") == ["train.jsonl"]
    (tmp_path / "default").mkdir()
    (tmp_path / "default/train.jsonl").touch()
    assert names(tmp_path, "train", "default") == ["default/train.jsonl"]


def test_a_subset_that_a_folder_does_not_have_is_named(tmp_path: Path) -> None:
    """As an example file of Trinity-RFT says `subset_name: main`, and one's own data has none."""
    touch(tmp_path, "train.jsonl")
    with pytest.raises(UserError, match="has no folder main, which `subset_name` names: leave"):
        names(tmp_path, "train", "main")
    with pytest.raises(UserError, match="there is no file or directory"):
        names(tmp_path / "nothing", "train", "main")


def test_a_directory_without_data_is_named(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(
        UserError, match=r"holds no .jsonl or .*\.parquet or .arrow file.*: put the"
    ):
        names(tmp_path, "train")
    with pytest.raises(UserError, match="of an unknown kind"):
        find_data_files(str(tmp_path / "notes.txt"), "train")


def test_a_folder_of_subsets_names_the_subset(tmp_path: Path) -> None:
    """As `datasets` has them, where the hub's own name of the subset is left out."""
    touch(tmp_path, "main/train-0.parquet", "socratic/train-0.parquet", "notes/a.txt")
    with pytest.raises(UserError, match="its folder `main` does, so set `subset_name: main`"):
        names(tmp_path, "train")
    touch(tmp_path, "nested/inner/train-0.parquet")
    with pytest.raises(UserError, match="does, so set `subset_name: nested/inner`"):
        names(tmp_path, "train", "nested")
    assert names(tmp_path, "train", "nested/inner") == ["nested/inner/train-0.parquet"]


def test_rows_that_are_there_twice_count_once(tmp_path: Path) -> None:
    touch(tmp_path, "train-0.jsonl", "train-0.jsonl.gz", "train-1.jsonl.gz")
    assert names(tmp_path, "train") == ["train-0.jsonl", "train-1.jsonl.gz"]
    touch(tmp_path, "train-1.csv")
    with pytest.raises(UserError, match=r"holds both train-1.csv and train-1.jsonl.gz"):
        names(tmp_path, "train")


def test_a_damaged_table_is_one_sentence_where_rows_are_counted(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow"):
        (tmp_path / name).write_bytes(b"PAR1 no PAR1")
        with pytest.raises(UserError, match="is not a readable"):
            count_rows((tmp_path / name,))


def test_a_large_damaged_text_is_one_sentence_where_rows_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_rows, "READ_WHOLE_BYTES", 0)
    cut = gzip.compress(b'{"a": 1}\n' * 99)[:-9]
    for content, sentence in ((cut, "cut or damaged"), (b"{}\n", "Not a gzipped file")):
        (tmp_path / "a.jsonl.gz").write_bytes(content)
        with pytest.raises(UserError, match=sentence):
            count_rows((tmp_path / "a.jsonl.gz",))


def test_what_datasets_saved_is_read_back(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"prompt": str(i)} for i in range(5)])
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"train": rows, "test": rows.select([3])}).save_to_disk(
        str(tmp_path / "two")
    )
    one = find_data_files(str(tmp_path / "one"), "train")
    test = find_data_files(str(tmp_path / "two"), "test")
    assert (count_rows(one), first_row(one)) == (5, {"prompt": "0"})
    assert (count_rows(test), first_row(test)) == (1, {"prompt": "3"})
    with pytest.raises(UserError, match="has no split `dev`: it has test or train"):
        find_data_files(str(tmp_path / "two"), "dev")
