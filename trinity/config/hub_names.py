"""Names on the Hugging Face hub that a plan asks for, and which of them are here already."""

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
    """As sentences call it."""


def to_fetch(plan: ExperimentPlan) -> tuple[HubName, ...]:
    """Each that is no directory and not in the cache, once."""
    named = {(one.kind, one.name): one for stage in plan.stages for one in _named(stage)}
    return tuple(one for one in named.values() if newest_snapshot(one.kind, one.name) is None)


def dataset_of(rows: Rows) -> str | None:
    """The name on the hub that rows are read from; None for those that lie elsewhere."""
    is_dataset = rows.storage_type == "file" and rows.path and is_hub_name(rows.path)
    return rows.path if is_dataset else None


def is_offline() -> bool:
    """Whether the hub must not be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() not in _OFF


def refuse_offline(one: HubName) -> None:
    """Raises: UserError when it is not here and may not be fetched."""
    if is_offline() and newest_snapshot(one.kind, one.name) is None:
        raise UserError(
            f"{one.place} is neither a directory nor in the hub's cache, and HF_HUB_OFFLINE keeps "
            "it from being fetched: fetch it first, or unset the variable"
        )


def newest_snapshot(kind: Kind, name: str) -> Path | None:
    """The directory in which the hub's client keeps it; None if it was never fetched."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub")).expanduser()
    snapshots = cache / f"{kind}s--{name.replace('/', '--')}" / "snapshots"
    found = [entry for entry in snapshots.glob("*") if entry.is_dir()]
    return max(found, key=lambda entry: entry.stat().st_mtime, default=None)


def _named(stage: StagePlan) -> Iterator[HubName]:
    """The policy's key is the last word on its own name."""
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
    """With what users call them; an auxiliary buffer is read where its rows are mixed in."""
    yield from (("taskset", one) for one in (*stage.tasksets, *stage.eval_tasksets))
    yield "experience buffer", stage.experience_buffer
    if stage.expert_buffer is not None:
        yield "auxiliary buffer", stage.expert_buffer


def _model(path: str, key: str) -> Iterator[HubName]:
    if path and not os.path.isabs(path):
        yield HubName("model", path, f"`{key}: {path}`")
