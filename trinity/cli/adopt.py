"""`trinity adopt`: reads a fork of Trinity-RFT and writes which of its parts a run takes."""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml

from trinity.config.loading.yaml import YamlEntry, yaml_entries
from trinity.errors import UserError
from trinity.run.output import write_errors
from trinity.user_code.adopt.adoption import Adoption, read_checkout
from trinity.user_code.adopt.adoption import adopt as adopt_parts
from trinity.user_code.adopt.checkout import Fork
from trinity.user_code.adopt.manifest import Adopted
from trinity.user_code.adopt.upstream import Origin

MANIFEST = "adopted.json"
_WORDS = {Origin.UPSTREAM: "unchanged", Origin.CHANGED: "changed", Origin.OWN: "the fork's own"}
_PATH_KEY = re.compile(r"(path|_dir|_file)$")


def adopt(
    path: Annotated[
        Path, typer.Argument(help="The fork: a folder that holds its `trinity`.", metavar="PATH")
    ],
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A YAML file of the fork, whose parts are taken; without one, all of its own.",
            metavar="[FILE.yaml]",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for adopted.json and the YAML file.")
    ] = Path(),
) -> None:
    """Read a fork of Trinity-RFT, and write `adopted.json` and a YAML file that run here.

    It imports nothing of the fork. Both go to `trinity config check`, `run` and other commands,
    with `--adopted adopted.json`.
    """
    checkout = read_checkout(path)
    text = _read(file, checkout) if file is not None else None
    adoption = adopt_parts(checkout, None if text is None else names_in(text))
    manifest = output / MANIFEST
    if manifest.exists():
        Adopted.read(manifest)  # a file of others is not overwritten
    with write_errors(output, "give another folder as `--output`"):
        output.mkdir(parents=True, exist_ok=True)
        placed = replace(adoption.adopted, checkout=_place(checkout.root, output.resolve()))
        manifest.write_text(placed.text(), encoding="utf-8")
        written = _write_file(file, text, checkout, output) if file and text is not None else None
    for line in _report(checkout, adoption):
        print(line)
    print(f"wrote {manifest}{f' and {written}' if written else ''}; next:")
    words = ["trinity", "config", "check", str(written or "FILE.yaml"), "--adopted", str(manifest)]
    print(f"  {shlex.join(words)}")


def _place(root: Path, output: Path) -> str:
    """Returns the checkout's path from the file, so that both can be moved together."""
    together = Path.cwd().resolve()
    is_below = root.is_relative_to(together) and output.is_relative_to(together)
    return os.path.relpath(root, output) if is_below else str(root)


def _read(file: Path, checkout: Fork) -> str:
    found = next((at for at in (file, checkout.root / file) if at.is_file()), None)
    if found is None:
        raise UserError(f"{file} is no file, neither here nor in {checkout.root}")
    try:
        text = found.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{found} is not text in UTF-8: {error.reason}") from error
    if not any(yaml_entries(text)):
        raise UserError(f"{found} holds no `key: value` lines: give a YAML file of the fork")
    return text


def names_in(text: str) -> set[str]:
    """Returns all texts that a YAML file has as values; parts are named by some of them."""
    nodes = (entry.value for entry in yaml_entries(text))
    items = (item for node in nodes for item in (node, *_items(node)))
    return {item.value for item in items if isinstance(item, yaml.ScalarNode)}


def _items(node: yaml.Node) -> list[yaml.Node]:
    return node.value if isinstance(node, yaml.SequenceNode) else []


def _write_file(file: Path, text: str, checkout: Fork, output: Path) -> Path:
    target = output / file.name
    changed = changed_text(text, checkout.root)
    if target.exists() and target.read_text(encoding="utf-8") != changed:
        raise UserError(f"{target} exists: give another folder as `--output`")
    target.write_text(changed, encoding="utf-8")
    return target


def changed_text(text: str, root: Path) -> str:
    """Returns the file with paths of the fork made absolute; all else stays as it is written."""
    edits = {}
    for entry in yaml_entries(text):
        if (value := _changed_value(entry, root)) is not None:
            edits[entry.value.start_mark.index] = (entry.value.end_mark.index, value)
    for start, (end, value) in sorted(edits.items(), reverse=True):
        text = text[:start] + value + text[end:]
    return text


def _changed_value(entry: YamlEntry, root: Path) -> str | None:
    """Returns the value in quotes if it leads into the checkout."""
    value, key = entry.value.value, entry.key.rpartition(".")[2]
    is_text = isinstance(entry.value, yaml.ScalarNode) and value and not Path(value).is_absolute()
    if not is_text or not _PATH_KEY.search(key) or "$" in value or ":" in value:
        return None
    first = Path(value).parts[:1]
    if not first or first[0] == "." or not (root / first[0]).exists():
        return None
    return yaml.safe_dump(str(root / value), default_style='"', width=10**6).strip()


def _report(checkout: Fork, adoption: Adoption) -> Iterator[str]:
    counts = [f"{checkout.count(origin)} {word}" for origin, word in _WORDS.items()]
    version = f" {checkout.version}" if checkout.version else ""
    yield f"{checkout.root}: Trinity-RFT{version}; of its files {', '.join(counts)}"
    for part in adoption.taken:
        yield f"  taken    {part.kind} `{part.name}`: {part.definition.name}, {part.place}"
    for part in adoption.readers:
        yield (
            f"  rows     reader `{part.name}`, {part.place}: the buffer reads rows itself; write "
            "the rows that it makes to a file that the taskset names"
        )
    for sentence in adoption.sentences:
        yield f"  note     {sentence}"
