"""The YAML that a form makes: a document to start from, with the values of the form over it."""

import copy
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from trinity.config.check import CheckReport, check_file
from trinity.config.loading.keys import documented_key, drop, get, has, parse_key, put
from trinity.config.loading.yaml import load_yaml, yaml_text
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.experiment import SINGLE_STAGE
from trinity.errors import UserError
from trinity.studio.generator.fields import FieldSpec, field_specs, from_widget, to_widget
from trinity.studio.generator.registry import ConfigEntry
from trinity.verl.convert import convert
from trinity.verl.settings import read_sources

Tree = dict[str, Any]
MAX_BYTES = 1_000_000
"""Most bytes of a document that a form takes."""
_KEY = re.compile(r"`([a-z_]+(?:\.[\w]+(?:\[\d+\])?)*)`?")


@dataclass(frozen=True, slots=True, kw_only=True)
class FormReport:
    """The check of a form: what belongs to a field, and what does not; texts are untrusted."""

    yaml: str
    errors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By the path of the key that they name."""
    other_errors: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    plan: tuple[str, ...] = ()
    """The plan, if there are no errors."""
    stages: tuple[StagePlan, ...] = ()
    """The stages of that plan."""

    @property
    def all_errors(self) -> tuple[str, ...]:
        """The errors of all fields, then those without a field."""
        return (*chain.from_iterable(self.errors.values()), *self.other_errors)


def read_document(text: str) -> Tree:
    """Returns the document to start from.

    Raises: UserError if it is no mapping in YAML.
    """
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise UserError(
            f"the document has more than {MAX_BYTES:,} bytes: give a YAML file of a run"
        )
    try:
        tree = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise UserError(f"the document is not YAML that can be read: {line}") from None
    if not isinstance(tree, dict):
        raise UserError(
            "the document is not a mapping of keys to values: give a YAML file of a run"
        )
    return tree


def document_from_verl(script: str) -> tuple[Tree, tuple[str, ...]]:
    """Converts a pasted script of veRL; returns the document, and the report of the conversion.

    Raises: UserError if it starts no training of veRL.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pasted.sh"
        path.write_text(script, encoding="utf-8")
        converted = convert(read_sources([str(path)]))
    return read_document(converted.yaml), converted.report


def values_of(tree: Tree) -> dict[str, object]:
    """Returns the values of the widgets for a document, by the names of their fields."""
    found: dict[str, object] = {}
    for name, spec in field_specs().items():
        location = parse_key(spec.path)
        value = get(tree, location) if has(tree, location) else spec.default
        found[name] = to_widget(spec, value)
    return found


def make_tree(base: Tree, values: Mapping[str, object], entries: Mapping[str, ConfigEntry]) -> Tree:
    """Lays the values of entries with a path over a document.

    A value that is the default is written only if the document had the key.

    Raises: UserError naming the key if a value cannot be written.
    """
    tree = copy.deepcopy(base)
    specs = field_specs()
    for name, entry in entries.items():
        if not entry.path or name not in values:
            continue
        spec = specs.get(name)
        if spec is not None and _is_untouched(tree, spec, entry, values[name]):
            continue
        try:
            value = values[name] if spec is None else from_widget(spec, values[name])
            _write(tree, entry, spec, value)
        except ValueError as error:
            raise UserError(str(error)) from None
        except KeyError:
            raise UserError(
                f"`{entry.path}` cannot be written: something above it is no section"
            ) from None
    return tree


def _is_untouched(tree: Tree, spec: FieldSpec, entry: ConfigEntry, shown: object) -> bool:
    """Returns true if the widget shows the document's value.

    A variable such as `${oc.env:GPUS}` instead of a number is shown as an empty field, and stays.
    """
    location = parse_key(entry.path)
    try:
        return has(tree, location) and shown == to_widget(spec, get(tree, location))
    except KeyError:
        return False  # `_write` says why


def _write(tree: Tree, entry: ConfigEntry, spec: FieldSpec | None, value: object) -> None:
    location = parse_key(entry.path)
    default = spec.default if spec is not None and spec.path == entry.path else entry.default
    plain_default = list(default) if isinstance(default, tuple) else default
    if has(tree, location):
        if value is None:
            drop(tree, location)
        elif not _is_same(get(tree, location), value):
            put(tree, location, value)
    elif value is not None and not _is_same(plain_default, value):
        put(tree, location, value)


def _is_same(left: object, right: object) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def check_tree(tree: Tree) -> FormReport:
    """Checks a document as `trinity config check` does, and attaches errors to their keys."""
    text = yaml_text(tree) + "\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "form.yaml"
        path.write_text(text, encoding="utf-8")
        report = check_file(path)
    by_key: dict[str, list[str]] = {}
    others: list[str] = []
    place = re.compile(rf"^{re.escape(str(path))}(:\d+)?: (stage `{SINGLE_STAGE}`: )?")
    for line in report.errors:
        error = place.sub("", line).replace(str(path), "this form")
        key = _key_of(error)
        (by_key.setdefault(key, []) if key else others).append(error)
    return FormReport(
        yaml=text,
        errors={key: tuple(errors) for key, errors in by_key.items()},
        other_errors=tuple(others),
        advice=report.advice + tuple(str(notice) for notice in report.notices),
        plan=_plan_lines(report),
        stages=() if report.plan is None else report.plan.stages,
    )


def _key_of(error: str) -> str:
    """Returns the first key of a field that an error names; empty if it names no field."""
    paths = {spec.path for spec in field_specs().values()}
    for written in _KEY.findall(error):
        key = documented_key(parse_key(written))
        if key in paths:
            return key
        if f"{key}.path" in paths:  # a section of data that is missing begins with its file
            return f"{key}.path"
    return ""


def _plan_lines(report: CheckReport) -> tuple[str, ...]:
    """Describes how many GPUs each stage uses."""
    if report.plan is None:
        return ()
    lines = []
    for stage in report.plan.stages:
        rollout = stage.config.explorer.rollout_model
        engines = rollout.num_gpus if stage.needs_rollout else 0
        steps = stage.total_train_steps or "as many as the data gives"
        lines.append(
            f"stage {stage.name}: {stage.algorithm.algorithm_type}, train steps: {steps}, "
            f"ranks of the trainer: {stage.trainer_rank_num}, devices of engines: {engines}"
        )
    return tuple(lines)
