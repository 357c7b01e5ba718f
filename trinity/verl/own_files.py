"""Finds the configuration that a script names with `--config-name`, if it is not veRL's own."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from trinity.verl.shell.variables import Field

OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?")
CONFIG_FILE = "hydra.config_file"
"""The setting that holds the path of the configuration."""
_OPTIONS = ("config_name", "config_path", "config_dir")
_VERLS_OWN = re.compile(r"(ppo|sft)(_[a-z]+)?_trainer(_engine)?(\.yaml)?")


def is_verls_own(name: str) -> bool:
    """True if a configuration comes with veRL, so that the conversion knows its defaults."""
    return _VERLS_OWN.fullmatch(name) is not None


def config_options(words: Sequence[Field]) -> Iterator[tuple[str, str, int]]:
    """Yields name, value and line of the options with which Hydra finds its files."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        option = OPTION.fullmatch(word.text)
        name = option["name"].replace("-", "_") if option else ""
        if option is None or name not in _OPTIONS:
            continue
        if value := option["value"] or (following.text if following else ""):
            yield name, value, word.line


def own_file(words: Sequence[Field], script: Path) -> Path | None:
    """Its path, relative to the current directory or to one above the script; None if not found."""
    options = {name: value for name, value, _ in config_options(words)}
    name = options.get("config_name")
    if name is None or is_verls_own(name):
        return None
    folder = options.get("config_path") or options.get("config_dir") or "."
    file = Path(folder) / f"{name.removesuffix('.yaml')}.yaml"
    places = (above / file for above in (Path(), *script.resolve().parents))
    return next((place for place in places if place.is_file()), None)
