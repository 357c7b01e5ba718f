"""`key=value` after a command, which overrides the file's values."""

from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import JsonValue

from trinity.errors import UserError

OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="Keys that override the file's, such as algorithm.optimizer.lr=1e-5.",
        show_default=False,
    ),
]


def is_override(argument: str) -> bool:
    """True if an argument sets a key, and is not a file name."""
    name, equals, _ = argument.partition("=")
    return bool(equals) and "/" not in name


def parse_overrides(arguments: Sequence[str]) -> dict[str, JsonValue]:
    """Returns the values by dotted key, each parsed as YAML.

    Raises: UserError naming an argument that is not `key=value`.
    """
    return dict(_parsed(argument) for argument in arguments)


def _parsed(argument: str) -> tuple[str, JsonValue]:
    import yaml

    from trinity.config.loading.yaml import load_yaml

    key, equals, text = argument.partition("=")
    if not equals or not key.strip():
        raise UserError(f"`{argument}` sets no key: write it as algorithm.optimizer.lr=1e-5")
    try:
        value: JsonValue = load_yaml(text)
    except yaml.YAMLError as error:
        raise UserError(f"the value of `{argument}` is not valid YAML: put it in quotes") from error
    return key.strip(), value
