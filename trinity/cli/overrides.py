"""Words after a command: its configuration file, and `key=value` that overrides its values."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from trinity.errors import UserError
from trinity.runtime.json_values import JsonValue

WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE] [KEY=VALUE]...",
        help="The experiment's YAML file, unless --config names it, and keys that override its "
        "values, such as algorithm.optimizer.lr=1e-5.",
        show_default=False,
    ),
]
FileArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE]",
        help="The experiment's YAML file, unless --config names it.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The same FILE.", show_default=False)
]
FilesOption = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", help="The same as a FILE before them.", show_default=False),
]


_KEY = re.compile(r"[^.\[\]+~]+(\[\d+\])*(\.[^.\[\]]+(\[\d+\])*)*")


def is_override(argument: str) -> bool:
    """True if an argument sets a key, and is not a file name."""
    name, equals, _ = argument.partition("=")
    return bool(equals) and "/" not in name


def single_file(given: Sequence[Path], command: str) -> Path:
    """Returns the one file that a command was given, as a word or as `--config`.

    Raises: UserError unless exactly one is given.
    """
    if not given:
        raise UserError(
            f"no file is named: write `{command} FILE`, or `{command} --config FILE`, with the "
            "experiment's YAML file"
        )
    if len(given) > 1:
        named = " and ".join(str(path) for path in given)
        raise UserError(f"`{command}` takes one file, and {named} are given: leave one out")
    return given[0]


def split_words(
    words: Sequence[str] | None, config: Path | None, command: str
) -> tuple[Path, list[str]]:
    """Returns the file of a command and its overrides; with `--config` all words are overrides.

    Raises: UserError unless exactly one file is named.
    """
    given = list(words or ())
    if config is not None:
        if doubled := [
            word
            for word in given
            if not is_override(word) and Path(word).suffix in (".yaml", ".yml")
        ]:
            single_file([config, *map(Path, doubled)], command)
        return config, given
    files = [Path(word) for word in given if not is_override(word)]
    return single_file(files, command), [word for word in given if is_override(word)]


def refuse_ignored(beside: str, options: Mapping[str, object]) -> None:
    """Raises UserError if an option is given that `beside` makes ineffective.

    refuse_ignored("--population", {"--sort": sort, "--oldest": oldest})
    """
    given = [
        name
        for name, value in options.items()
        if value is not None and value is not False and value != ""
    ]
    if given:
        verb = "have" if len(given) > 1 else "has"
        raise UserError(f"{' and '.join(given)} {verb} no effect beside {beside}: leave one out")


def parse_overrides(arguments: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the values by dotted key, each parsed as YAML.

    Raises: UserError naming an argument that is not `key=value`.
    """
    return dict(_parsed(argument) for argument in arguments)


def _better(key: str, text: str) -> str:
    """The assignment without what Hydra puts in front of a key, or an example."""
    plain = key.strip().lstrip("+~")
    is_key = text and _KEY.fullmatch(plain)
    return f"{plain}={text}" if is_key else "key=value, such as algorithm.optimizer.lr=1e-5"


def _parsed(argument: str) -> tuple[str, JsonValue]:
    import yaml

    from trinity.config.loading.yaml import load_yaml

    key, equals, text = argument.partition("=")
    if not equals or not _KEY.fullmatch(key.strip()):
        raise UserError(f"`{argument}` sets no key: write it as {_better(key, text)}")
    try:
        value: JsonValue = load_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"the value of `{argument}` is not valid YAML: put it in quotes") from error
    return key.strip(), value
