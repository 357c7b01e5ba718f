"""Reads the configuration, version and code of the veRL checkout around a script.

Does not run any of it: Hydra's own composition imports modules that a configuration names, so files
are composed as text here.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from trinity.config.loading.yaml import key_lines
from trinity.config.loading.yaml_errors import yaml_error_sentence
from trinity.errors import UserError
from trinity.verl.releases import Release, parse_release
from trinity.verl.values import FloatLoader, JsonValue, flat_values

_CONFIG = Path("verl", "trainer", "config")
EASY_R1 = Path("verl", "trainer", "main.py")
"""EasyR1's program, in whose place veRL has several."""
_ROOT_FILES = (".git", "README.md", "setup.py", "pyproject.toml", "requirements.txt")
"""Files that mark the top of a repository, which may hold veRL in a folder."""
_VERSION = re.compile(r"version\s*=\s*[\"'](v?\d+\.\d+[^\"']*)[\"']")
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class YamlDefault:
    """A value of a configuration file."""

    value: JsonValue
    where: str
    """`ppo_trainer.yaml:12`."""


@dataclass(frozen=True)
class Checkout:
    """The folder that holds the package `verl`."""

    folder: Path

    @cached_property
    def release(self) -> Release | None:
        """Returns the release that its files name, if any."""
        for file in ("verl/version/version", "setup.py", "pyproject.toml"):
            text = _text(self.folder / file).strip()
            found = _VERSION.search(text) if "=" in text else None
            try:
                return parse_release(found[1] if found else text)
            except UserError:
                continue
        return None

    @cached_property
    def code(self) -> str:
        """veRL's Python, as far as it reads a configuration."""
        places = [self.folder / "verl" / name for name in ("trainer", "workers", "utils")]
        files = [file for place in places for file in sorted(place.rglob("*.py"))]
        return "\n".join(_text(file) for file in files)

    def reads(self, word: str, file: str = "") -> bool:
        """True if a word stands in the code, or in one file below `verl` if that is there."""
        text = (_text(self.folder / "verl" / file) if file else "") or self.code
        return word in text and re.search(rf"{re.escape(word)}\b", text) is not None

    def defaults(self, name: str) -> dict[str, YamlDefault]:
        """Returns the values of a configuration and its includes, composed as by Hydra.

        Raises: UserError for a file that is no YAML.
        """
        return dict(_composed(self.folder / _CONFIG, f"{name.removesuffix('.yaml')}.yaml", ()))


def checkout_at(path: Path) -> Checkout:
    """The checkout in a folder that the user gives: of the package, around it or below.

    Raises: UserError if none is there.
    """
    folder = path.expanduser().resolve()
    around = [
        Checkout(above)
        for above in (folder, folder.parent)
        if (above / _CONFIG).is_dir() or (above / EASY_R1).is_file()
    ]
    below = [found.parents[2] for found in sorted(folder.glob("*/verl/trainer/config"))]
    if around or len(below) == 1:
        return around[0] if around else Checkout(below[0])
    several = ", ".join(str(each) for each in below)
    hint = f"choose one of {several}" if below else "give the folder that has `verl/trainer/config`"
    raise UserError(f"--verl {path} holds {'several veRLs' if below else 'no veRL'}: {hint}")


def find_checkout(path: Path) -> Checkout | None:
    """The nearest checkout around a file: a folder above it, or one folder below such a root."""
    for above in path.resolve().parents:
        if (above / _CONFIG).is_dir():
            return Checkout(above)
        if any((above / name).exists() for name in _ROOT_FILES):
            below = [found for found in above.glob("*/verl/trainer/config") if found.is_dir()]
            if len(below) == 1:
                return Checkout(below[0].parents[2])
        if (above / ".git").exists():
            return None
    return None


def _text(path: Path) -> str:
    """Returns the text of a file; empty if it is missing, too large or unreadable."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _composed(
    folder: Path, file: str, inside: tuple[str, ...]
) -> Iterator[tuple[str, YamlDefault]]:
    """Yields keys in the order in which Hydra lays them over one another.

    Raises: UserError for a file that is no YAML.
    """
    text = _text(folder / file)
    try:
        tree = yaml.load(text, Loader=FloatLoader) if file not in inside else None  # a SafeLoader
    except yaml.YAMLError as error:
        raise UserError(yaml_error_sentence(error, folder / file, text)) from error
    if not isinstance(tree, dict):
        return
    included = tree.pop("defaults", [])
    names = included if isinstance(included, list) else []
    groups = [each for entry in names if isinstance(entry, dict) for each in entry.items()]
    chosen = {f"${{{group}}}": str(name) for group, name in groups}
    lines = key_lines(text)
    own = [
        (key, YamlDefault(value, f"{Path(file).name}:{lines.get(key, 1)}"))
        for key, value in flat_values(tree)
    ]
    for entry in [*names, *([] if "_self_" in names else ["_self_"])]:
        if entry == "_self_":
            yield from own
            continue
        for name, package in _includes(entry, file, chosen):
            for key, found in _composed(folder, name, (*inside, file)):
                yield (f"{package}.{key}" if package else key), found


def _includes(entry: object, file: str, chosen: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the file and the section of an entry such as `actor@actor_rollout_ref.actor: dp`."""
    if isinstance(entry, dict):
        group, name = next(iter(entry.items()), ("", None))
    else:
        group, _, name = str(entry).rpartition("/")
        name, at, package = name.partition("@")
        group += at + package
    if not isinstance(name, str):
        return
    for reference, choice in chosen.items():
        name = name.replace(reference, choice)
    group, has_package, package = str(group).rpartition(" ")[2].partition("@")
    above = "" if group.startswith("/") else file.rpartition("/")[0]
    place = "/".join(part for part in (above, group.strip("/"), name) if part)
    section = package if has_package else group.strip("/").replace("/", ".")
    yield (
        f"{place.removesuffix('.yaml')}.yaml",
        "" if section in ("_here_", "_global_") else section,
    )
