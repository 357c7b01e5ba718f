"""Hugging Face hub names that a plan uses, and the local snapshots of those in the cache."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.config.plan_parts import ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.taskset_storage import is_hub_name
from trinity.errors import UserError

Kind = Literal["model", "dataset"]
Rows = ResolvedTaskset | ResolvedExperienceBuffer
"""Tasks, or rows to train on."""
_OFF = {"", "0", "no", "off", "false"}


@dataclass(frozen=True, slots=True)
class HubName:
    """A model or dataset, and where the configuration names it."""

    kind: Kind
    name: str
    place: str
    """Its name in messages."""


def to_fetch(plan: ExperimentPlan) -> tuple[HubName, ...]:
    """The names that are neither a directory nor in the cache, each once."""
    named = {(name.kind, name.name): name for stage in plan.stages for name in _named(stage)}
    return tuple(name for name in named.values() if newest_snapshot(name.kind, name.name) is None)


def dataset_of(rows: Rows) -> str | None:
    """The name on the hub that rows are read from; None if they are read from elsewhere."""
    is_dataset = rows.storage_type == "file" and rows.path and is_hub_name(rows.path)
    return rows.path if is_dataset else None


def is_offline() -> bool:
    """True if the hub must not be contacted."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() not in _OFF


def refuse_offline(hub_name: HubName) -> None:
    """Raises UserError if a name is not in the cache and may not be downloaded."""
    if is_offline() and newest_snapshot(hub_name.kind, hub_name.name) is None:
        raise UserError(
            f"{hub_name.place} is neither a directory nor in the hub's cache, and HF_HUB_OFFLINE "
            "keeps it from being fetched: fetch it first, or unset the variable"
        )


def newest_snapshot(kind: Kind, name: str) -> Path | None:
    """The directory in which the hub's client keeps it; None if it was never fetched."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    snapshots = cache / f"{kind}s--{name.replace('/', '--')}" / "snapshots"
    found = [entry for entry in snapshots.glob("*") if entry.is_dir()]
    return max(found, key=lambda entry: entry.stat().st_mtime, default=None)


def _named(stage: StagePlan) -> Iterator[HubName]:
    """Yields the stage's names; of a name used twice the last counts, so the policy comes late."""
    for position, model in enumerate(stage.auxiliary_models):
        if model.external is None:
            key = f"explorer.auxiliary_models[{position}].model_path"
            yield from _model(model.model_path, key)
    yield from _model(stage.critic_model_path or "", "model.critic_model_path")
    if stage.external_model is None:
        yield from _model(stage.model_path, "model.model_path")
    for what, rows in _read_rows(stage):
        if name := dataset_of(rows):
            yield HubName("dataset", name, f"{what} `{rows.name}`, `path: {name}`")


def _read_rows(stage: StagePlan) -> Iterator[tuple[str, Rows]]:
    """The rows read, each with a noun for messages; the expert buffer only if it is mixed in."""
    yield from (("taskset", taskset) for taskset in (*stage.tasksets, *stage.eval_tasksets))
    yield "experience buffer", stage.experience_buffer
    if stage.expert_buffer is not None:
        yield "auxiliary buffer", stage.expert_buffer


def _model(path: str, key: str) -> Iterator[HubName]:
    if path and not os.path.isabs(path):
        yield HubName("model", path, f"`{key}: {path}`")
