"""The configuration that a script names with `--config-name`, where it is not veRL's own."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from trinity.verl.shell.variables import Field

OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w-]*)(?:=(?P<value>.*))?")
CONFIG_FILE = "hydra.config_file"
"""The setting that holds where the configuration was found."""
_OPTIONS = ("config_name", "config_path", "config_dir")
_VERLS_OWN = re.compile(r"(ppo|sft)(_[a-z]+)?_trainer(_engine)?(\.yaml)?")


def is_verls_own(name: str) -> bool:
    """Whether a configuration comes with veRL, whose defaults the conversion knows."""
    return _VERLS_OWN.fullmatch(name) is not None


def config_options(words: Sequence[Field]) -> Iterator[tuple[str, str, int]]:
    """Name, value and line of the options by which Hydra finds its files."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        option = OPTION.fullmatch(word.text)
        name = option["name"].replace("-", "_") if option else ""
        if option is None or name not in _OPTIONS:
            continue
        if value := option["value"] or (following.text if following else ""):
            yield name, value, word.line


def own_file(words: Sequence[Field], script: Path) -> Path | None:
    """Where it lies, seen from here or from a directory above the script; None if nowhere."""
    options = {name: value for name, value, _ in config_options(words)}
    name = options.get("config_name")
    if name is None or is_verls_own(name):
        return None
    folder = options.get("config_path") or options.get("config_dir") or "."
    file = Path(folder) / f"{name.removesuffix('.yaml')}.yaml"
    places = (above / file for above in (Path(), *script.resolve().parents))
    return next((place for place in places if place.is_file()), None)
