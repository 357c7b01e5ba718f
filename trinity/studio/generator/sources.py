"""Documents to start a configuration from: examples of the repository, runs, and drafts.

A browser that reloads the page Configure starts a new session, in which every field has its
default; the draft restores the earlier values.
"""

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.schema.experiment import SINGLE_STAGE
from trinity.errors import UserError
from trinity.run.launch.resume import PLAN_FILE
from trinity.runtime.logs import HIDDEN
from trinity.runtime.shipped import shipped
from trinity.studio.generator.document import Tree, read_document

EXAMPLES = shipped("examples")
COPY_SUFFIX = "-copy"
EXAMPLE_REMARK = (
    "Its paths begin in the root of the repository, and its README says how its data is made."
)
COPY_REMARK = (
    f"The name ends with `{COPY_SUFFIX}`, so that a start begins a separate run; under its old "
    "name it would go on with the old one."
)
_MISSING = object()
SECRETS_REMARK = "API keys and passwords are not kept with a run: give them again."
MAX_DRAFTS = 16
"""Visitors whose drafts are kept; that of the one who wrote longest ago is forgotten first."""


def example_files(folder: Path = EXAMPLES) -> dict[str, Path]:
    """Returns the files of the examples by their names; empty for an installed package."""
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml"))}


def document_of_example(path: Path) -> tuple[Tree, tuple[str, ...]]:
    """Returns the document of an example, and what to know about it.

    Raises: UserError if it cannot be read.
    """
    try:
        return read_document(path.read_text(encoding="utf-8")), (EXAMPLE_REMARK,)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def document_of_run(directory: Path) -> tuple[Tree, tuple[str, ...]]:
    """Returns a document that gives the plan of a directory's run.

    Keys that have their default are left out, and secrets, which are not stored.
    Raises: UserError if the plan of the run cannot be read.
    """
    path = directory / PLAN_FILE
    try:
        plan = ExperimentPlan.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValidationError:
        raise UserError(
            f"{path} is not a plan of this release: start from the run's YAML file instead"
        ) from None
    tree, has_secrets = _without_hidden(document_of_plan(plan))
    assert isinstance(tree, dict), "a document is a mapping"
    tree["name"] = f"{plan.stages[0].config.name}{COPY_SUFFIX}"
    return tree, (COPY_REMARK, *((SECRETS_REMARK,) if has_secrets else ()))


def document_of_plan(plan: ExperimentPlan) -> Tree:
    """Returns a document of a plan: the keys of all stages above, the others in each stage."""
    written = [stage.config.model_dump(mode="json", exclude_defaults=True) for stage in plan.stages]
    if [stage.name for stage in plan.stages] == [SINGLE_STAGE]:
        return written[0]
    shared = _shared(written)
    stages = [
        {"stage_name": stage.name, **_beyond(tree, shared)}
        for stage, tree in zip(plan.stages, written, strict=True)
    ]
    return {**shared, "stages": stages}


def _shared(trees: Sequence[Mapping[str, object]]) -> Tree:
    """Returns the keys that all trees have with the same value."""
    found: Tree = {}
    for key, value in trees[0].items():
        others = [tree.get(key, _MISSING) for tree in trees]
        if all(other == value for other in others):
            found[key] = value
        elif mappings := [other for other in others if isinstance(other, dict)]:
            below = _shared(mappings) if len(mappings) == len(others) else {}
            found |= {key: below} if below else {}
    return found


def _beyond(tree: Mapping[str, object], shared: Mapping[str, object]) -> Tree:
    """Returns the keys of a tree that the shared part does not have."""
    found: Tree = {}
    for key, value in tree.items():
        below = shared.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            rest = _beyond(value, below)
            found |= {key: rest} if rest else {}
        elif key not in shared:
            found[key] = value
    return found


def _without_hidden(value: object) -> tuple[object, bool]:
    """Returns the value without hidden secrets, and true if it had some.

    An address stays, with its password hidden.
    """
    if isinstance(value, dict):
        kept = {key: _without_hidden(item) for key, item in value.items() if item != HIDDEN}
        had = len(kept) < len(value) or any(found for _, found in kept.values())
        return {key: item for key, (item, _) in kept.items()}, had
    if isinstance(value, list):
        items = [_without_hidden(item) for item in value]
        return [item for item, _ in items], any(found for _, found in items)
    return value, isinstance(value, str) and f":{HIDDEN}@" in value


@dataclass(slots=True)
class Drafts:
    """The newest document of each visitor, in memory; threads of pages share it."""

    _kept: dict[str, dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, visitor: str, tree: dict[str, Any]) -> None:
        """Replaces the visitor's last document."""
        with self._lock:
            self._kept.pop(visitor, None)
            self._kept[visitor] = copy.deepcopy(tree)
            while len(self._kept) > MAX_DRAFTS:
                del self._kept[next(iter(self._kept))]

    def last(self, visitor: str) -> dict[str, Any] | None:
        """Returns the visitor's last document, if any."""
        with self._lock:
            return copy.deepcopy(self._kept.get(visitor))
