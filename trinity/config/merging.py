"""Merges stages deeply over the global configuration."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.config.root import Config
from trinity.errors import UserError

SINGLE_STAGE = "main"
"""Name of the only stage of an experiment that lists none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage with its merged configuration."""

    index: int
    name: str
    config: Config


def stages_of(config: Config) -> tuple[Stage, ...]:
    """The experiment's stages in order, at least one."""
    names = [stage.stage_name for stage in config.stages]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two of `stages` are called `{name}`: give each its own `stage_name`")
    if not config.stages:
        return (Stage(index=0, name=SINGLE_STAGE, config=config),)
    written = config.model_dump(exclude_unset=True)
    above = written.pop("stages")
    return tuple(
        Stage(index=index, name=stage.pop("stage_name"), config=_laid_over(written, stage))
        for index, stage in enumerate(above)
    )


def _laid_over(below: Mapping[str, object], above: Mapping[str, object]) -> Config:
    return Config.model_validate(deep_merge(below, above))


def deep_merge(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """`below` with the keys of `above` in it; other values than mappings are replaced whole."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = deep_merge(old, value)
        merged[key] = value
    return merged
