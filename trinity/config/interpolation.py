"""`${...}` in a tree of values: other keys and environment variables."""

import re
from typing import TYPE_CHECKING, Any

from trinity.config.source import Source
from trinity.errors import UserError

if TYPE_CHECKING:
    from omegaconf.errors import OmegaConfBaseException

_UNSET_VARIABLE = re.compile(r"Environment variable '(\w+)' not found")


def interpolated(tree: dict[str, Any], source: Source) -> dict[str, Any]:
    """The tree with all of them filled in; raises UserError for the first that cannot be."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        values = OmegaConf.to_container(OmegaConf.create(tree), resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = error.full_key or "the file"
        raise UserError(f"`{key}` {source.at(key)}: {_reason(error)}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _reason(error: "OmegaConfBaseException") -> str:
    text = str(error).partition("\n")[0]
    if missing := _UNSET_VARIABLE.search(text):
        name = missing[1]
        return (
            f"the environment variable {name} is not set: set it, or write a default as in "
            f"${{oc.env:{name},value}}"
        )
    return text
