"""`trainer.trainer_config_path`: a file of verl's keys, read as if written in its place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trinity.config.loading import keys
from trinity.config.loading.keys import Location, to_dotted
from trinity.config.loading.source import ConfigSource, written_sections
from trinity.config.loading.tree import read_tree
from trinity.config.schema.experiment import Config
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError

PATH = "trainer_config_path"
KEYS = "trainer_config"


def load_verl_files(tree: dict[str, Any], source: ConfigSource) -> tuple[ConfigSource, list[str]]:
    """Puts the files' keys into the tree; each is located at the line that names its file."""
    errors: list[str] = []
    lines, overridden = dict(source.lines), set(source.overridden)
    for at, trainer in list(_with_files(tree)):
        key, place = to_dotted((*at, PATH)), (*at, KEYS)
        path = trainer.pop(PATH)
        said = f"`{key}: {path}` {source.at(key)}"
        if trainer.get(KEYS):
            errors.append(f"{said} is given beside `{to_dotted(place)}`: keep one of the two")
            continue
        try:
            trainer[KEYS], unfilled = read_tree(ConfigSource.read(Path(path)), {})
        except UserError as error:
            errors.append(f"{said}: {error}")
            continue
        errors += [f"{said}: {error}" for error in unfilled]
        if line := source.line(key):
            lines |= {to_dotted((*place, *leaf)): line for leaf, _ in keys.leaves(trainer[KEYS])}
        else:
            overridden.add(to_dotted(place))
    return source.with_verls(lines, frozenset(overridden)), errors


def _with_files(tree: dict[str, Any]) -> Iterator[tuple[Location, dict[str, Any]]]:
    for at, section, written in written_sections(tree, Config):
        if section is TrainerConfig and isinstance(written.get(PATH), str) and written[PATH]:
            yield at, written
