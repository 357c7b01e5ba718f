"""`${...}` in a tree of values: other keys and environment variables."""

import re
from typing import TYPE_CHECKING, Any

from trinity.config import keys
from trinity.config.source import Source
from trinity.errors import UserError

if TYPE_CHECKING:
    from omegaconf.errors import OmegaConfBaseException

_NO_KEY = re.compile(r"Interpolation key '([^']*)' not found")
_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


def interpolated(tree: dict[str, Any], source: Source) -> tuple[dict[str, Any], list[str]]:
    """Fills in the tree as far as possible; returns it with an error for each key left out.

    Raises: UserError if a value that cannot be filled in cannot be left out, as in a list.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    mistakes: list[str] = []
    while True:
        try:
            container = OmegaConf.create(tree)
            values = OmegaConf.to_container(container, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            key = error.full_key or "the file"
            mistakes.append(f"`{key}` {source.at(key)}: {_reason(error)}")
            location = keys.parsed(key)
            if not (keys.has(tree, location) and isinstance(location[-1], str)):
                raise UserError("\n".join(mistakes)) from error
            keys.drop(tree, location)
        else:
            assert isinstance(values, dict)
            return {str(key): value for key, value in values.items()}, mistakes


def _reason(error: "OmegaConfBaseException") -> str:
    from omegaconf.errors import GrammarParseError

    text = str(error).partition("\n")[0]
    if missing := _UNSET_VARIABLE.search(text):
        name = missing[1]
        return (
            f"the environment variable {name} is not set: set it, or write a default as in "
            f"${{oc.env:{name},value}}"
        )
    if absent := _NO_KEY.search(text):
        return (
            f"there is no key `{absent[1]}` to take the value from: name one from the top of the "
            "file, as in ${model.model_path}, or a variable, as in ${oc.env:NAME}"
        )
    if text.startswith("Missing mandatory value"):
        return "`???` stands for a value that is still to be given: write it"
    if isinstance(error, GrammarParseError):
        return (
            "what follows `${` is neither a key nor a variable: write ${model.model_path} or "
            "${oc.env:NAME,default}, or \\${ for the characters themselves"
        )
    return text
