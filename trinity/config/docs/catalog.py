"""Catalog of all keys: path, type in words, status, and the text under the field.

A new configuration has the keys that a first run needs, each with that text.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types as bound
from pydantic import StringConstraints
from pydantic.fields import FieldInfo

from trinity.config.loading.keys import parse_key
from trinity.config.loading.source import is_by_name, section_at, section_of
from trinity.config.loading.yaml import yaml_text
from trinity.config.schema.base import (
    MAX_COUNT,
    AcceptedKeys,
    KeyStatus,
    Section,
    accepted_keys,
    choices_of,
    mark_of,
    status_of,
)
from trinity.config.schema.experiment import Config, StageConfig

_PLAIN = {int: "whole number", float: "number", bool: "true or false", str: "text"}
_SEGMENT = "letters, digits, `.`, `_` and `-`"
SCHEMA_LINE = "# yaml-language-server: $schema=trinity.schema.json"
IS_MATHS = "math_workflow"
TRAINER = {"save_interval": 50, "max_checkpoints_to_keep": 2}


def field_doc(section: type[Section], name: str) -> str:
    """The text under a field, taken from the most derived class that has one."""
    for declared in section.__mro__:
        if issubclass(declared, Section) and (text := _docs_of_section(declared).get(name)):
            return text
    return ""


@cache
def _docs_of_section(section: type[Section]) -> dict[str, str]:
    accepted = accepted_keys().get(section.__name__, AcceptedKeys())
    unread = {row.name: row.meaning for row in accepted.unread}
    nodes = (node for node in _classes(inspect.getfile(section)) if node.name == section.__name__)
    return next((_field_docs(node) for node in nodes), {}) | unread


@cache
def _classes(file: str) -> tuple[ast.ClassDef, ...]:
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    return tuple(node for node in tree.body if isinstance(node, ast.ClassDef))


def _field_docs(node: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, after in zip(node.body, node.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            assert isinstance(after, ast.Expr)
            assert isinstance(after.value, ast.Constant)
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found


def type_description(field: FieldInfo) -> str:
    """Describes the values that a field accepts."""
    return _describe(field.annotation, field.metadata)


def _describe(annotation: Any, metadata: Iterable[object] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe(arguments[0], (*_flat(arguments[1:]), *metadata))
    if origin in (Union, UnionType):
        return " or ".join(_alternatives(arguments, metadata))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin is dict:
        inner = _section(arguments[1])
        return "sections under names of your own" if inner else "keys of your own"
    if origin is tuple:
        return _list(arguments)
    if _section(annotation):
        return "section"
    return f"{_PLAIN.get(annotation, 'any value')}{_bounds(metadata)}"


def _alternatives(arguments: tuple[Any, ...], metadata: Iterable[object]) -> Iterator[str]:
    for argument in arguments:
        yield "null" if argument is NoneType else _describe(argument, metadata)


def _list(arguments: tuple[Any, ...]) -> str:
    if arguments[-1] is not ...:
        return (
            f"list of {len(arguments)}: {', '.join(_describe(argument) for argument in arguments)}"
        )
    return "list of sections" if _section(arguments[0]) else f"list, each {_describe(arguments[0])}"


def _flat(metadata: Iterable[object]) -> Iterator[object]:
    for item in metadata:
        if isinstance(item, FieldInfo):
            yield from item.metadata
        else:
            yield item


def _bounds(metadata: Iterable[object]) -> str:
    words = []
    for constraint in metadata:
        match constraint:
            case bound.Gt(gt):
                words.append(f"above {gt}")
            case bound.Ge(ge):
                words.append(f"from {ge} on")
            case bound.Lt(lt):
                words.append(f"below {lt}")
            case bound.Le(le) if le != MAX_COUNT:
                words.append(f"up to {le}")
            case StringConstraints(pattern=pattern) if pattern is not None:
                words.append(f"of {_SEGMENT}")
    return f" {', '.join(words)}" if words else ""


def _section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    """One key, or an older name of one."""

    path: str
    """`buffer.explorer_input.eval_tasksets[].name`, `...auxiliary_buffers.<name>.path`."""
    section: type[Section]
    name: str
    status: KeyStatus
    reason: str = ""
    """Why it does not act; for an older name, the current key."""
    field: FieldInfo | None = None
    """None for an older name."""

    @property
    def plain_path(self) -> str:
        """Path without placeholders for positions and names."""
        return self.path.replace("[]", "").replace(".<name>", "")

    @property
    def meaning(self) -> str:
        """Description of the key."""
        return field_doc(self.section, self.name)

    @property
    def type(self) -> str:
        """Type, in words."""
        return type_description(self.field) if self.field else ""

    @property
    def is_required(self) -> bool:
        """True if the key has no default."""
        return self.field is not None and self.field.is_required()

    @property
    def default(self) -> Any:
        """Value of a key that is left out."""
        assert self.field is not None
        return self.field.get_default(call_default_factory=True)

    @property
    def is_section(self) -> bool:
        """True if it has keys below it and no value."""
        return self.field is not None and _section(self.field.annotation)

    @property
    def planned_values(self) -> dict[str, str]:
        """Planned values, with their descriptions."""
        return dict(choices_of(self.field).planned) if self.field else {}

    @property
    def other_values(self) -> dict[str, str]:
        """Aliases of values, with the names used here."""
        return dict(choices_of(self.field).aliases) if self.field else {}


def all_keys() -> Iterator[ConfigKey]:
    """Yields all keys, a section before its keys; a stage has the sections of the top level."""
    for key in _keys(Config, "", None):
        yield key
        if key.path == "stages":
            names = ("stage_name", "mode")
            yield from (_key(StageConfig, "stages[].", name, None) for name in names)


def _keys(section: type[Section], prefix: str, above: ConfigKey | None) -> Iterator[ConfigKey]:
    for name, field in section.model_fields.items():
        key = _key(section, prefix, name, above)
        yield key
        inner = section_of(field.annotation)
        if inner is not None and name != "stages":
            yield from _keys(inner, f"{key.path}{_below(field)}.", key)
    yield from _older(section, prefix)


def _key(section: type[Section], prefix: str, name: str, above: ConfigKey | None) -> ConfigKey:
    """Describes a key; keys below one that does not act do not act either."""
    field = section.model_fields[name]
    mark, status = mark_of(field), status_of(field)
    reason = mark.reason if mark else ""
    if above is not None and above.status is not KeyStatus.ACTS:
        status, reason = above.status, above.reason
    return ConfigKey(
        path=f"{prefix}{name}",
        section=section,
        name=name,
        status=status,
        reason=reason,
        field=field,
    )


def _older(section: type[Section], prefix: str) -> Iterator[ConfigKey]:
    for name, renamed in section.old_names.items():
        yield ConfigKey(
            path=f"{prefix}{name}",
            section=section,
            name=name,
            status=KeyStatus.RENAMED,
            reason=renamed.to[1:] if renamed.to.startswith("/") else f"{prefix}{renamed.to}",
        )


def _below(field: FieldInfo) -> str:
    if is_by_name(field):
        return ".<name>"
    return "[]" if get_origin(field.annotation) is tuple else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftOptions:
    """Options of a first configuration."""

    name: str
    model: str
    taskset: str
    algorithm: str = "grpo"
    workflow: str = IS_MATHS
    reward: str | None = None
    prompt_key: str = "question"
    response_key: str = "answer"
    eval_split: str | None = None
    gpus: int = 0
    reward_fn_key: str = ""
    max_prompt_tokens: int = 1024
    max_response_tokens: int = 1024
    batch_size: int = 32
    data_format: Mapping[str, str] | None = None
    """Columns of rows that are trained on as they are; None for tasks."""
    max_model_len: int = 2048
    """Tokens of the longest such row."""
    learning_rate: float = 1e-6
    """For such rows."""


def draft_config(options: DraftOptions) -> str:
    """The file's text; it loads unchanged if the model and the tasks exist at the given paths."""
    head = [
        SCHEMA_LINE,
        "# `trinity config explain KEY` explains a key, `trinity config check` checks the file,",
        "# `trinity run --dry-run` also checks that the model and the data exist.",
    ]
    return "\n".join([*head, yaml_text(_tree(options), _meaning)]) + "\n"


def _tree(options: DraftOptions) -> dict[str, Any]:
    if options.data_format is not None:
        return _tree_of_data(options, options.data_format)
    columns = {"prompt_key": options.prompt_key, "response_key": options.response_key}
    if options.reward_fn_key:
        columns["reward_fn_key"] = options.reward_fn_key
    tasks: dict[str, Any] = {"default_workflow_type": options.workflow}
    if options.reward:
        tasks["default_reward_fn_type"] = options.reward
    tasks["taskset"] = {"name": "train", "path": options.taskset, "split": "train"}
    tasks["taskset"] |= {"format": columns, "data_selector": {"selector_type": "shuffle"}}
    if options.eval_split:
        held_out: dict[str, Any] = {
            "name": "held_out",
            "path": options.taskset,
            "split": options.eval_split,
        }
        held_out |= {"format": columns, "rollout_args": {"temperature": 0.0}}
        tasks["eval_tasksets"] = [held_out]
    return {
        **_run_of(
            options,
            "colocate" if options.gpus == 1 else "both",
            max_prompt_tokens=options.max_prompt_tokens,
            max_response_tokens=options.max_response_tokens,
        ),
        "algorithm": {
            "algorithm_type": options.algorithm,
            "repeat_times": 8,
            "optimizer": {"lr": 1e-6, "lr_warmup_steps": 10},
        },
        "cluster": {"gpu_per_node": options.gpus},
        "buffer": {"batch_size": options.batch_size, "total_epochs": 1, "explorer_input": tasks},
        "explorer": {"runner_per_model": 32, "eval_interval": 20},
        "trainer": TRAINER,
        "synchronizer": {"sync_interval": 1, "sync_offset": 0},
    }


def _run_of(options: DraftOptions, mode: str, **lengths: int) -> dict[str, Any]:
    return {
        "project": "trinity",
        "name": options.name,
        "checkpoint_root_dir": "./checkpoints",
        "mode": mode,
        "seed": 42,
        "model": {"model_path": options.model, **lengths},
    }


def _tree_of_data(options: DraftOptions, columns: Mapping[str, str]) -> dict[str, Any]:
    rows = {"name": "train", "storage_type": "file", "path": options.taskset, "split": "train"}
    return {
        **_run_of(options, "train", max_model_len=options.max_model_len),
        "algorithm": {
            "algorithm_type": options.algorithm,
            "optimizer": {"lr": options.learning_rate, "lr_warmup_steps": 10},
        },
        "cluster": {"gpu_per_node": options.gpus},
        "buffer": {
            "train_batch_size": options.batch_size,
            "total_epochs": 1,
            "trainer_input": {"experience_buffer": {**rows, "format": dict(columns)}},
        },
        "trainer": TRAINER,
    }


def _meaning(key: str) -> str:
    """First sentence of the key's description."""
    location = parse_key(key)
    section = section_at(location[:-1], Config)
    assert section is not None
    return re.split(r"(?<!\.)\. ", field_doc(section, str(location[-1])))[0].removesuffix(".")
