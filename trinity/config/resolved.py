"""The fully resolved configuration: every value that acts, and its origin."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trinity.config import keys
from trinity.config.derivations import derived
from trinity.config.merging import SINGLE_STAGE
from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.config.source import Source

OF_EXPERIMENT = (
    "project",
    "group",
    "name",
    "tenant",
    "seed",
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "log",
    "service",
)
"""Keys that a stage cannot override."""

DEFAULT = "default"


@dataclass(slots=True)
class Resolved:
    """Values as a tree that is a configuration again, with the origin of each by dotted key."""

    tree: dict[str, Any]
    origins: dict[str, str]

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Dotted key and value, lists entered."""
        yield from _leaves(self.tree, "")


def resolve(plan: ExperimentPlan, source: Source) -> Resolved:
    """Resolves an experiment; a single stage is at the top level, several are in `stages`."""
    first = plan.stages[0]
    whole = Resolved({}, {})
    is_single = len(plan.stages) == 1 and first.name == SINGLE_STAGE
    for name, value in _written(first).items():
        if name in OF_EXPERIMENT:
            whole.tree[name] = value
    if is_single:
        _put_stage(whole, first, source, ())
    else:
        whole.tree["stages"] = [{"stage_name": stage.name} for stage in plan.stages]
        for stage in plan.stages:
            _put_stage(whole, stage, source, ("stages", stage.index))
    _trace(whole, source)
    return whole


def _written(stage: StagePlan) -> dict[str, Any]:
    dumped: dict[str, Any] = stage.config.model_dump(mode="json", exclude={"stages"})
    return dumped


def _put_stage(whole: Resolved, stage: StagePlan, source: Source, at: keys.Location) -> None:
    place = keys.get(whole.tree, at)
    own = {key: value for key, value in _written(stage).items() if key not in OF_EXPERIMENT}
    place.update(_without_empty(own))
    for key, value, rule in derived(stage):
        location = (*at, *keys.parsed(key))
        origin = _origin(location, source)
        written = keys.get(whole.tree, location) if keys.has(whole.tree, location) else None
        if written != value or origin is None:
            is_default = written == value and not isinstance(value, dict)
            is_path = rule == "absolute path"
            text = origin if origin and is_path else f"{rule}" + (f", {origin}" if origin else "")
            whole.origins[keys.dotted(location)] = DEFAULT if is_default else text
        keys.put(whole.tree, location, value)


def _trace(whole: Resolved, source: Source) -> None:
    """Fills in the origin of the remaining keys."""
    for key, _ in whole.leaves():
        if key not in whole.origins:
            whole.origins[key] = _origin(keys.parsed(key), source) or DEFAULT


def _origin(location: keys.Location, source: Source) -> str | None:
    """The origin of the stage's own key, else of the global one."""
    own = source.origin(keys.dotted(location))
    return own or source.origin(keys.dotted(location[len(keys.top_of(location)) :]))


def _without_empty(tree: dict[str, Any]) -> dict[str, Any]:
    pruned = {
        key: _without_empty(value) if isinstance(value, dict) else value
        for key, value in tree.items()
    }
    return {key: value for key, value in pruned.items() if value != {}}


def _leaves(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        for name, value in tree.items():
            yield from _leaves(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        for position, value in enumerate(tree):
            yield from _leaves(value, f"{key}[{position}]")
    else:
        yield key, tree
