"""Checks of users' model overrides and of the modules imported before a model is built."""

import importlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue
from transformers import AutoConfig, PretrainedConfig

from trinity.config.error_collector import did_you_mean
from trinity.config.plan.arithmetic import NESTED_OVERRIDE
from trinity.errors import UserError

NOT_OF_THE_MODEL = frozenset({"attn_implementation"})


def import_library(name: str | None, section: str) -> None:
    """Raises: UserError where the module cannot be imported."""
    if name is None:
        return
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"`{section}.external_lib: {name}` cannot be imported ({error}): install it where "
            "the trainer runs"
        ) from error


def check_override(override: Mapping[str, JsonValue], directory: Path, section: str) -> None:
    """Checks that every key is the model's: verl accepts any, so a typo would change nothing.

    Raises: UserError naming the key.
    """
    if not override:
        return
    config: PretrainedConfig = AutoConfig.from_pretrained(directory)
    nested = override.get(NESTED_OVERRIDE)
    known = config.to_dict()
    for key, value in (nested if isinstance(nested, dict) else override).items():
        if key in NOT_OF_THE_MODEL:
            continue
        where = f"`{section}.override_config.{key}`"
        if key not in known:
            raise UserError(
                f"{where} is no key of the model's config.json{did_you_mean(key, known)}"
            )
        if isinstance(value, dict) and not isinstance(getattr(config, key), PretrainedConfig):
            raise UserError(
                f"{where} cannot be merged into the model's: verl changes single values and the "
                "keys of a model's parts; write it into a copy of config.json"
            )
