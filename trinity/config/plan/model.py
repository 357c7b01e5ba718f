"""Resolves the models of a stage: directories, hub names, chat template, models elsewhere."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trinity.config.plan.parts import ExternalAccess, ResolvedRows
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.task_storage import expanded, is_hub_name
from trinity.config.schema.base import Args
from trinity.config.schema.experiment import Config
from trinity.config.schema.model import THINKING, ExternalAccessConfig, ModelConfig
from trinity.errors import UserError

Kind = Literal["model", "dataset"]
MODEL_FILE_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py")
"""The files of a model on the hub that are fetched."""
_OFF = {"", "0", "no", "off", "false"}

TAKEN_TEMPLATE_KWARGS = {
    *("messages", "conversation", "conversations", "tools", "documents", "chat_template"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "tokenizer_kwargs"),
    *("padding", "truncation", "max_length", "return_tensors", "return_dict"),
    "return_assistant_tokens_mask",
}
"""Arguments of transformers' `apply_chat_template` that are no variables of a template."""
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model or dataset, and where the configuration names it."""

    kind: Kind
    name: str
    place: str
    """Its name in messages."""


def missing_from_cache(plan: ExperimentPlan) -> tuple[HubReference, ...]:
    """The names that are neither a directory nor in the cache, each once."""
    named = hub_references(plan)
    return tuple(name for name in named if newest_snapshot(name.kind, name.name) is None)


def hub_references(plan: ExperimentPlan) -> tuple[HubReference, ...]:
    """The models and datasets of the hub, each once."""
    named = {(name.kind, name.name): name for stage in plan.stages for name in _named(stage)}
    return tuple(named.values())


def hub_dataset(rows: ResolvedRows) -> str | None:
    """The name on the hub that rows are read from; None if they are read from elsewhere."""
    is_dataset = rows.storage_type == "file" and rows.path and is_hub_name(rows.path)
    return rows.path if is_dataset else None


def is_offline() -> bool:
    """True if the hub must not be contacted."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() not in _OFF


def require_online(hub_name: HubReference) -> None:
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


def _named(stage: StagePlan) -> Iterator[HubReference]:
    """Yields the stage's names; of a name used twice the last counts, so the policy comes late."""
    for position, model in enumerate(stage.auxiliary_models):
        if model.external is None:
            key = f"explorer.auxiliary_models[{position}].model_path"
            yield from _model(model.model_path, key)
    yield from _model(stage.critic_model_path or "", "model.critic_model_path")
    yield from _model(stage.teacher_model_path or "", "algorithm.distillation.model_path")
    if stage.external_model is None:
        yield from _model(stage.model_path, "model.model_path")
    for what, rows in _read_rows(stage):
        if name := hub_dataset(rows):
            yield HubReference("dataset", name, f"{what} `{rows.name}`, `path: {name}`")


def _read_rows(stage: StagePlan) -> Iterator[tuple[str, ResolvedRows]]:
    """The rows read, each with a noun for messages; the expert buffer only if it is mixed in."""
    yield from (("taskset", taskset) for taskset in (*stage.tasksets, *stage.eval_tasksets))
    yield "experience buffer", stage.experience_buffer
    if stage.expert_buffer is not None:
        yield "auxiliary buffer", stage.expert_buffer


def _model(path: str, key: str) -> Iterator[HubReference]:
    if path and not os.path.isabs(path):
        yield HubReference("model", path, f"`{key}: {path}`")


def resolve_model_path(path: str, key: str = "model.model_path") -> str:
    """Returns `locate_model` of a path that must be given."""
    if not path:
        raise UserError(
            f"`{key}` is missing: give the directory of a model in Hugging Face's layout"
        )
    return locate_model(path)


def locate_model(path: str) -> str:
    """Absolute directory of a model; empty without one, and a hub name stays as it is."""
    directory = expanded(path)
    is_hub_name = _HUB_NAME.fullmatch(path) and not Path(path).parent.exists()
    is_kept = not path or (is_hub_name and not directory.exists())
    return path if is_kept else str(directory.absolute())


def chat_template_of(model: ModelConfig) -> str | None:
    """The text of the user's chat template, None for the tokenizer's own."""
    if model.chat_template_path is None:
        return model.custom_chat_template
    if model.custom_chat_template is not None:
        raise UserError(
            "`model.custom_chat_template` and `model.chat_template_path` are both given: remove one"
        )
    try:
        return expanded(model.chat_template_path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(
            f"`model.chat_template_path: {model.chat_template_path}` "
            f"cannot be read ({why}): give a text file, from {Path.cwd()} on or by its whole path"
        ) from error


def check_template_kwargs(given: Args, enable_thinking: bool | None, at: str) -> None:
    """Checks that no variable is one that the template gets anyway, or is set twice.

    Raises: UserError for the first one that is.
    """
    key = f"`{at}.chat_template_kwargs`"
    if taken := sorted(TAKEN_TEMPLATE_KWARGS & given.keys()):
        raise UserError(
            f"{key} sets `{taken[0]}`, which follows from the messages and the model: leave it out"
        )
    if enable_thinking is not None and given.get(THINKING, enable_thinking) != enable_thinking:
        raise UserError(
            f"{key} sets `{THINKING}`, and so does `{at}.{THINKING}`, to another value: remove one"
        )


def local_model_directory(model_path: str, key: str = "model.model_path") -> Path | None:
    """The directory of a planned `model_path`; None for a model that is still on the hub."""
    if os.path.isabs(model_path):
        if not Path(model_path).is_dir():
            raise UserError(
                f"there is no model directory {model_path}: create it or correct `{key}`"
            )
        return Path(model_path)
    require_online(HubReference("model", model_path, f"`{key}: {model_path}`"))
    return newest_snapshot("model", model_path)


def is_external(config: Config) -> bool:
    """True if a model served elsewhere takes the place of the policy."""
    rollout = config.explorer.rollout_model
    return config.model.external_model.enable or rollout.engine_type == "external"


def resolve_external_model(config: Config) -> ExternalAccess | None:
    """Returns the access to the external model, if there is one.

    Raises: UserError when it is to be trained, or has no name.
    """
    if not is_external(config):
        return None
    if config.mode not in ("bench", "explore"):
        raise UserError(
            f"a model that others serve (`model.external_model.enable`) tells no "
            f"log-probabilities that `mode: {config.mode}` could train on: give `mode: bench` or "
            "`explore`, or make it one of `explorer.auxiliary_models`"
        )
    if config.mode == "bench" and not config.buffer.explorer_input.eval_tasksets:
        raise UserError(
            "`buffer.explorer_input.eval_tasksets` is missing: "
            "`mode: bench` evaluates the model on them"
        )
    return external_access(config.model.external_model, "model.external_model")


def external_access(given: ExternalAccessConfig, key: str) -> ExternalAccess:
    """Returns the access to a model; raises UserError if the model has no name."""
    if not given.model_name:
        raise UserError(
            f"`{key}.model_name` is missing: give the name that the model has where others serve it"
        )
    return ExternalAccess(
        base_url_env=given.base_url_env,
        api_key_env=given.api_key_env,
        model_name=given.model_name,
    )
