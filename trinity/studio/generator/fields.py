"""Entries made from the schema: which keys each section shows, and how a value becomes YAML.

An entry has the name that Trinity-RFT's generator gives it, or the path of its key with `__`
for dots, so that plug-ins written for either find the session keys they know.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, get_args

import yaml
from annotated_types import Ge, Gt, Le, Lt

from trinity.config.docs.catalog import ConfigKey, all_keys
from trinity.config.schema.base import KeyStatus, is_secret, literals
from trinity.verl.key_table import verl_names

ESSENTIAL, IMPORTANT = "Essential Configs", "Important Configs"
MODEL, BUFFER = "Model", "Buffer"
EXPLORER, TRAINER = "Explorer and Synchronizer", "Trainer"
EXPERT_SECTIONS = (MODEL, BUFFER, EXPLORER, TRAINER)
_PREFIXES: tuple[tuple[str, str], ...] = (
    ("algorithm.", TRAINER),
    ("trainer.", TRAINER),
    ("explorer.", EXPLORER),
    ("synchronizer.", EXPLORER),
    ("buffer.", BUFFER),
    ("data_processor.", BUFFER),
    ("", MODEL),
)
"""The section of a key is that of the first beginning that fits."""
BEGINNER: Mapping[str, tuple[str, ...]] = {
    ESSENTIAL: (
        "project",
        "exp_name",
        "model_path",
        "checkpoint_root_dir",
        "taskset_path",
        "algorithm_type",
    ),
    IMPORTANT: (
        "mode",
        "total_epochs",
        "total_steps",
        "explore_batch_size",
        "train_batch_size",
        "repeat_times",
        "actor_lr",
        "max_model_len",
        "max_response_tokens",
        "default_workflow_type",
        "default_reward_fn_type",
        "node_num",
        "gpu_per_node",
        "engine_num",
        "tensor_parallel_size",
        "sync_interval",
        "save_interval",
        "eval_interval",
        "monitor_type",
    ),
}
RFT_NAMES: Mapping[str, str] = {
    "name": "exp_name",
    "model.model_path": "model_path",
    "algorithm.optimizer.lr": "actor_lr",
    "buffer.batch_size": "explore_batch_size",
    "buffer.total_steps": "total_steps",
    "buffer.explorer_input.taskset.path": "taskset_path",
    "buffer.explorer_input.taskset.name": "taskset_name",
    "buffer.explorer_input.taskset.split": "taskset_split",
    "buffer.explorer_input.taskset.storage_type": "taskset_storage_type",
    "buffer.explorer_input.taskset.format.prompt_key": "taskset_prompt_key",
    "buffer.explorer_input.taskset.format.response_key": "taskset_response_key",
    "buffer.trainer_input.experience_buffer.path": "experience_buffer_path",
    "buffer.trainer_input.experience_buffer.storage_type": "storage_type",
    "monitor.monitor_type": "monitor_type",
}
"""Keys whose name in Trinity-RFT's generator is not the end of their path, or not theirs alone."""
FLAGS: Mapping[str, bool] = {"true": True, "false": False}


class FieldKind(StrEnum):
    """The widget of a field."""

    CHOICE = "choice"
    FLAG = "flag"
    WHOLE = "whole"
    NUMBER = "number"
    TEXT = "text"
    SECRET = "secret"
    YAML = "yaml"
    """A mapping or list, as YAML in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One key of the schema as a field of the form."""

    name: str
    path: str
    section: str
    kind: FieldKind
    default: object
    meaning: str
    type: str
    is_optional: bool
    """True if it may be left empty (null)."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    verl: tuple[str, ...] = ()

    @property
    def widget_default(self) -> object:
        """The default in the form that the widget takes."""
        return to_widget(self, self.default)


@cache
def field_specs() -> Mapping[str, FieldSpec]:
    """Returns the fields of all keys that act, by their names."""
    keys = [key for key in all_keys() if _is_field(key)]
    ends = [key.path.rpartition(".")[2] for key in keys]
    found: dict[str, FieldSpec] = {}
    for key, end in zip(keys, ends, strict=True):
        name = RFT_NAMES.get(key.path) or (end if ends.count(end) == 1 else "")
        if not name or name in found:
            name = _plain_name(key.path, found)
        found[name] = _spec(name, key)
    return found


def _plain_name(path: str, found: Mapping[str, FieldSpec]) -> str:
    """Returns the end of the path for the key that owns it, else the whole path."""
    end = path.rpartition(".")[2]
    is_default = path == f"algorithm.{end}" or path.startswith(
        ("buffer.explorer_input.default_", "algorithm.optimizer.", "explorer.rollout")
    )
    is_free = is_default and end not in found
    return end if is_free else path.replace(".", "__")


def _is_field(key: ConfigKey) -> bool:
    """Returns true for keys with a fixed path; lists of sections are edited in the YAML."""
    return (
        key.status is KeyStatus.ACTS
        and not key.is_section
        and "[]" not in key.path
        and "<name>" not in key.path
        and key.path != "stages"
        and not key.type.startswith(("list of sections", "section"))
    )


def _spec(name: str, key: ConfigKey) -> FieldSpec:
    assert key.field is not None
    annotation = key.field.annotation
    choices = tuple(dict.fromkeys(literals(annotation)))
    kind = _kind(key, choices)
    bounds = dict(_bounds([*key.field.metadata, *_nested_metadata(annotation)], kind))
    return FieldSpec(
        name=name,
        path=key.path,
        section=next(section for start, section in _PREFIXES if key.path.startswith(start)),
        kind=kind,
        default=key.default,
        meaning=key.meaning,
        type=key.type,
        is_optional=type(None) in get_args(annotation),
        choices=choices,
        minimum=bounds.get("minimum"),
        maximum=bounds.get("maximum"),
        verl=tuple(verl_names(key.path)),
    )


def _kind(key: ConfigKey, choices: tuple[str, ...]) -> FieldKind:
    words = key.type
    if is_secret(key.path):
        return FieldKind.SECRET
    if choices:
        return FieldKind.CHOICE
    if words.startswith("true or false"):
        return FieldKind.CHOICE if "null" in words else FieldKind.FLAG
    if words.startswith("whole number"):
        return FieldKind.WHOLE
    if words.startswith("number") and "text" not in words:
        return FieldKind.NUMBER
    if words.startswith("text"):
        return FieldKind.TEXT
    return FieldKind.YAML


def _nested_metadata(annotation: Any) -> Iterator[object]:
    """Yields the bounds that stand inside of a union."""
    for argument in get_args(annotation):
        yield argument
        yield from _nested_metadata(argument)


def _bounds(metadata: list[object], kind: FieldKind) -> Iterator[tuple[str, float]]:
    """Yields the bounds that a widget can hold, which are included; the check knows all others."""
    is_whole = kind is FieldKind.WHOLE
    for mark in metadata:
        if isinstance(mark, Ge) and isinstance(mark.ge, int | float):
            yield "minimum", mark.ge
        elif isinstance(mark, Gt) and isinstance(mark.gt, int) and is_whole:
            yield "minimum", mark.gt + 1
        elif isinstance(mark, Le) and isinstance(mark.le, int | float):
            yield "maximum", mark.le
        elif isinstance(mark, Lt) and isinstance(mark.lt, int) and is_whole:
            yield "maximum", mark.lt - 1


def to_widget(spec: FieldSpec, value: object) -> object:
    """Converts a value of the YAML to the value of the field's widget, by default a text."""
    if value is None:
        return None
    match spec.kind:
        case FieldKind.CHOICE:
            return str(value).lower() if isinstance(value, bool) else str(value)
        case FieldKind.FLAG:
            return bool(value)
        case FieldKind.WHOLE:
            return int(value) if isinstance(value, int | float) else None
        case FieldKind.NUMBER:
            return float(value) if isinstance(value, int | float) else None
        case FieldKind.YAML:
            plain = list(value) if isinstance(value, tuple) else value
            return yaml.safe_dump(plain, default_flow_style=True, width=math.inf).strip()
    return str(value)


def from_widget(spec: FieldSpec, value: object) -> object:
    """Converts a widget's value to a value of the YAML.

    Raises: ValueError with one sentence if it is invalid.
    """
    if value is None or (value == "" and spec.is_optional):
        return None
    if spec.kind is FieldKind.CHOICE and not isinstance(value, bool):
        return FLAGS.get(str(value), value) if not spec.choices else value
    if spec.kind is FieldKind.YAML:
        try:
            return yaml.safe_load(str(value))
        except yaml.YAMLError:
            raise ValueError(
                f"`{spec.path}` is not YAML: write it as {{name: value}} or [a, b]"
            ) from None
    return value
