"""Finds the files that hold the rows of a path, a split and a subset."""

import json
import re
from pathlib import Path
from typing import Protocol

from trinity.data.rows import COMPRESSED, JSON_LINES, file_kind
from trinity.errors import UserError

TEXT_SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
SUFFIXES = (
    *TEXT_SUFFIXES,
    ".parquet",
    ".arrow",
    *(f"{suffix}{COMPRESSED}" for suffix in TEXT_SUFFIXES),
)
FILE_KINDS = ".jsonl or .json or .csv or .tsv or .parquet or .arrow file (texts also as .gz)"
_SPLIT_WORDS = {"train", "test", "validation", "valid", "val", "dev", "eval"}
MOST_NAMED = 8
"""Files that a sentence names."""
_NO_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}


class FileTree(Protocol):
    """Files that may be looked at; a path that may not is an error, whatever is there."""

    def is_file(self, path: Path) -> bool:
        """Returns true for a file."""
        ...

    def is_dir(self, path: Path) -> bool:
        """Returns true for a directory."""
        ...

    def list_names(self, directory: Path) -> list[str]:
        """Returns the sorted names in a directory."""
        ...

    def read_text(self, path: Path) -> str:
        """Returns a text; raises OSError or ValueError if it cannot be read."""
        ...


class OwnFiles:
    """All files of the process's user."""

    def is_file(self, path: Path) -> bool:
        """Returns true for a file."""
        return path.is_file()

    def is_dir(self, path: Path) -> bool:
        """Returns true for a directory."""
        return path.is_dir()

    def list_names(self, directory: Path) -> list[str]:
        """Returns the sorted names in a directory."""
        return sorted(entry.name for entry in directory.iterdir())

    def read_text(self, path: Path) -> str:
        """Returns a text; raises OSError or ValueError if it cannot be read."""
        return path.read_text(encoding="utf-8")


OWN_FILES = OwnFiles()
UNNAMED = "default"
"""The hub's name of the subset of data that have no subsets."""


def find_data_files(
    path: str,
    split: str,
    subset_name: str | None = None,
    tree: FileTree = OWN_FILES,
) -> tuple[Path, ...]:
    """Returns the files in order. A single file is its own split.

    In a directory: the files saved there by `datasets`; else the subdirectory named like the split;
    else files with the split as a word in their names, in it or in its folder `data`; else, for
    `train`, all files if no name contains a split. If there are shards as on the hub
    (`data/train-00000-of-00002.parquet`), other files are ignored.
    """
    root = Path(path)
    if tree.is_file(root):
        if not root.name.endswith(SUFFIXES):
            raise UserError(f"{root} is of an unknown kind: give a {FILE_KINDS}")
        return (root,)
    directory = _subset(root, subset_name, tree)
    if tree.is_dir(root) and not tree.is_dir(directory):
        raise UserError(
            f"{root} has no folder {subset_name}, which `subset_name` names: leave `subset_name` "
            "out, or correct it"
        )
    if not tree.is_dir(directory):
        raise UserError(
            f"there is no file or directory {directory}: correct the path, "
            "or download the dataset there first"
        )
    if tree.is_file(directory / "dataset_dict.json") or tree.is_dir(directory / split):
        directory = _split_directory(directory, split, tree)
    if tree.is_file(directory / "state.json"):
        return _saved_dataset(directory, tree)
    return _files_of_split(root, directory, split, tree)


def _split_directory(directory: Path, split: str, tree: FileTree) -> Path:
    if not tree.is_dir(directory / split):
        found = [name for name in tree.list_names(directory) if tree.is_dir(directory / name)]
        raise UserError(f"{directory} has no split `{split}`: it has {_or(found) or 'none'}")
    return directory / split


def _saved_dataset(directory: Path, tree: FileTree) -> tuple[Path, ...]:
    try:
        state = json.loads(tree.read_text(directory / "state.json"))
        files = tuple(directory / _plain_name(entry["filename"]) for entry in state["_data_files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{directory / 'state.json'} is damaged: save the dataset again") from error
    for file in files:
        if not tree.is_file(file):
            raise UserError(f"{file} is missing: save the dataset again")
    return files


def _plain_name(name: str) -> str:
    """Returns a name that leads to no other directory; raises ValueError for any other."""
    if name != Path(name).name:
        raise ValueError(f"{name} is no file's name")
    return name


def _files_of_split(root: Path, directory: Path, split: str, tree: FileTree) -> tuple[Path, ...]:
    files = _data_files_below(directory, tree)
    if not files:
        hint = _where_rows_are(root, directory, tree)
        raise UserError(f"{directory} holds no {FILE_KINDS}: {hint}")
    named = {file: _words(file.stem) & (_SPLIT_WORDS | {split.lower()}) for file in files}
    chosen = tuple(file for file in files if split.lower() in named[file])
    is_split = directory.name == split or split == "train"
    if not chosen and is_split and not any(named.values()):
        chosen = files
    if not chosen:
        names = _or(sorted(file.name for file in files)[:MOST_NAMED])
        raise UserError(f"no file of {directory} belongs to split `{split}`: it has {names}")
    return _each_once(_of_one_place(directory, chosen, split))


def _of_one_place(directory: Path, files: tuple[Path, ...], split: str) -> tuple[Path, ...]:
    """Keeps only the shards named as on the hub in the folder `data`, if there are any.

    Raises: UserError when the split has files of several kinds, here and in `data`. Hugging Face's
        loader would read only one of the kinds.
    """
    shard = re.compile(rf"{re.escape(split)}-\d{{5}}-of-\d{{5}}\b", re.IGNORECASE)
    below = tuple(file for file in files if file.parent != directory)
    if shards := tuple(file for file in below if shard.match(file.name)):
        return shards
    beside = tuple(file for file in files if file.parent == directory)
    if below and beside and len({_kind(file) for file in files}) > 1:
        raise UserError(
            f"{directory} holds the split `{split}` twice, as {beside[0].name} and as "
            f"data/{below[0].name}: give one of them as `path`, or move the other away"
        )
    return files


def _subset(root: Path, name: str | None, tree: FileTree) -> Path:
    """Returns a subset's folder: the data itself for the one that the hub calls `default`."""
    if not name or (name == UNNAMED and not tree.is_dir(root / name)):
        return root
    return root / name


def unread_sentence(
    found: tuple[Path, ...],
    path: str,
    split: str,
    subset_name: str | None = None,
    tree: FileTree = OWN_FILES,
) -> str:
    """Returns a sentence about files that are not read because `data` has shards, if any."""
    directory = _subset(Path(path), subset_name, tree)
    if not found or any(file.parent != directory / "data" for file in found):
        return ""
    unread = [
        file
        for file in _data_files_below(directory, tree)
        if file.parent == directory and split.lower() in _words(file.stem)
    ]
    if not unread:
        return ""
    names = ", ".join(file.name for file in unread[:MOST_NAMED])
    more = f" and {len(unread) - MOST_NAMED} more files" if len(unread) > MOST_NAMED else ""
    return (
        f"{names}{more} in {unread[0].parent} {'is' if len(unread) == 1 else 'are'} not read, as "
        f"the folder has shards of the split `{split}` (data/{found[0].name})"
    )


def _kind(file: Path) -> str:
    kind = file_kind(file.name)
    return "json" if kind in JSON_LINES else kind


def _each_once(files: tuple[Path, ...]) -> tuple[Path, ...]:
    """Leaves out compressed files that also exist uncompressed.

    Raises: UserError when a file exists in two kinds, most likely with the same rows.
    """
    plain = tuple(file for file in files if file.with_suffix("") not in files)
    by_stem: dict[str, Path] = {}
    for file in plain:
        stem = str(file.parent / file.name.removesuffix(COMPRESSED)).rpartition(".")[0]
        if (other := by_stem.setdefault(stem, file)) != file:
            raise UserError(
                f"{file.parent} holds both {other.name} and {file.name}, and the same rows must "
                "not count twice: give one of the files as `path`, or rename one"
            )
    return plain


def _where_rows_are(root: Path, directory: Path, tree: FileTree) -> str:
    """Returns what to do about a directory without data."""
    below = [directory / name for name in tree.list_names(directory)]
    found = [entry for entry in below if tree.is_dir(entry) and _data_files_below(entry, tree)]
    if not found:
        return "put the rows there"
    subset = found[0].relative_to(root)
    return f"its folder `{found[0].name}` does, so set `subset_name: {subset}`, or `path` to it"


def _data_files_below(directory: Path, tree: FileTree) -> tuple[Path, ...]:
    places = [place for place in (directory, directory / "data") if tree.is_dir(place)]
    found = (place / name for place in places for name in tree.list_names(place))
    return tuple(
        file
        for file in found
        if file.name.endswith(SUFFIXES)
        and file.name not in _NO_DATA
        and not file.name.startswith(".")
        and tree.is_file(file)
    )


def _words(stem: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", stem.lower()))


def _or(names: list[str] | tuple[str, ...]) -> str:
    return " or ".join(names)
