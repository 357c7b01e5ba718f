"""Counts which plug-in files and guide snippets of Trinity-RFT load here, and why others do not.

git clone --depth 1 https://github.com/agentscope-ai/Trinity-RFT
python -m benchmarks.trinity_rft_files Trinity-RFT [--list]

A file is a plug-in if it defines a part: a workflow, a reward, an operator, a selector, or a part
of an algorithm. It is loaded as a file of a plugin folder, and its parts are checked as
`trinity config check` does. A snippet is loaded with the names that the guides import.
"""

import argparse
import ast
import os
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE, import_module, load_file, load_plugins
from trinity.rft.algorithm.advantage_fn import AdvantageFn
from trinity.rft.algorithm.advantage_fn.adapting import adapt_advantage
from trinity.rft.algorithm.algorithm import AlgorithmType, adapt_algorithm
from trinity.rft.algorithm.entropy_loss_fn import EntropyLossFn, adapt_entropy_loss
from trinity.rft.algorithm.kl_fn import KLFn, adapt_kl
from trinity.rft.algorithm.policy_loss_fn import PolicyLossFn, adapt_policy_loss
from trinity.rft.algorithm.sample_strategy import SampleStrategy, adapt_strategy
from trinity.rft.buffer.operators import ExperienceOperator, ExperienceOperatorV1
from trinity.rft.buffer.operators.adapting import adapt_operator
from trinity.rft.buffer.selector import BaseSelector
from trinity.rft.checks.workflow import check_workflow
from trinity.workflows.workflow import Workflow

WORKFLOWS = "trinity/common/workflows"
FOLDERS = (
    WORKFLOWS,
    "trinity/common/rewards",
    "trinity/buffer/operators",
    "trinity/buffer/selector",
    "trinity/algorithm",
    "trinity/plugins",
    "examples",
    "tests/utils/plugins",
)
GUIDES = "docs/sphinx_doc/source/tutorial"
PART = re.compile(
    r"(Workflow|RewardFn|AdvantageFn|Advantage|LossFn|KLFn|AlgorithmType|SampleStrategy"
    r"|ExperienceOperator|ExperienceOperatorV1|Selector)$"
)
PACKAGE = re.compile(r"No module named '([\w-]+)")
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
IMPORTS = """
import asyncio, copy, openai, torch, numpy as np
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import Dict, List, Optional, Tuple
from trinity.algorithm import AlgorithmType, AdvantageFn, PolicyLossFn, SampleStrategy
from trinity.algorithm.advantage_fn import GroupAdvantage
from trinity.algorithm.policy_loss_fn import PPOPolicyLossFn, SFTLossFn
from trinity.algorithm.utils import masked_loss, masked_mean
from trinity.buffer.operators import ExperienceOperator, ExperienceOperatorV1
from trinity.buffer.selector.selector import BaseSelector
from trinity.common.constants import SELECTOR_METRIC
from trinity.common.experience import CustomField, Experience, group_by
from trinity.common.models.model import ModelWrapper
from trinity.common.workflows import Task, Workflow
from trinity.common.workflows.step_wise_workflow import RewardPropagationWorkflow
from trinity.common.workflows.workflow import MultiTurnWorkflow, SimpleWorkflow
from trinity.utils.log import get_logger
from trinity.utils.registry import Registry
"""
"""The names that the guides have from the files around their snippets."""


REASONS = (
    (
        "is part of a class that other snippets complete",
        re.compile(r"defines no (run|`max_step_num`)(?!.*is_async)"),
    ),
    ("asks about images", re.compile(r"prompts are text")),
    (
        "draws or reads rows itself",
        re.compile(r"reads rows itself|selector of your own|buffer\.reader"),
    ),
    ("asks models in the buffer", re.compile(r"asks `auxiliary_models`")),
    ("defines what would never be called", re.compile(r"which is never called|is_async")),
    ("imports a name without counterpart", re.compile(r"is of Trinity-RFT and not here")),
)
"""Kinds of reasons, the first that fits counts."""
ADAPTERS: Mapping[tuple[type, ...], Callable[[str, Any], object]] = {
    (AdvantageFn,): adapt_advantage,
    (AlgorithmType,): adapt_algorithm,
    (EntropyLossFn,): adapt_entropy_loss,
    (KLFn,): adapt_kl,
    (PolicyLossFn,): adapt_policy_loss,
    (SampleStrategy,): adapt_strategy,
    (ExperienceOperator, ExperienceOperatorV1): adapt_operator,
}


@dataclass(frozen=True, slots=True)
class FileResult:
    """The result of loading a file or a snippet."""

    place: str
    reason: str
    """Empty if it loads and its parts may be named in a file."""

    @property
    def kind(self) -> str:
        """The kind of its reason."""
        if not self.reason:
            return "loads"
        if package := PACKAGE.search(self.reason):
            return f"needs the package `{package[1]}`"
        return next((name for name, pattern in REASONS if pattern.search(self.reason)), "fails")


def main() -> None:
    """Prints the counts of a copy of Trinity-RFT."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--list", action="store_true", help="each one that does not simply load")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    root = options.folder.resolve()
    _make_importable(root)
    for title, outcomes in (("files", list(files(root))), ("snippets", list(snippets(root)))):
        if options.list:
            for outcome in outcomes:
                if outcome.reason:
                    print(f"{outcome.place}: {outcome.kind}: {outcome.reason}")
        for line in table(title, outcomes):
            print(line)


def _make_importable(root: Path) -> None:
    """Makes what files import of one another importable, at the end of Python's path."""
    os.environ[PLUGIN_DIRS_VARIABLE] = str(root / WORKFLOWS)
    sys.path.append(str(root))
    import tests

    tests.__path__.append(str(root / "tests"))
    load_plugins([])


def table(title: str, outcomes: list[FileResult]) -> Iterator[str]:
    """Yields the counts as Markdown."""
    yield f"| {title} | {len(outcomes)} |"
    yield "| --- | --- |"
    for kind, number in Counter(outcome.kind for outcome in outcomes).most_common():
        yield f"| {kind} | {number} |"


def files(root: Path) -> Iterator[FileResult]:
    """Yields what became of each plug-in file."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if not path.name.startswith("__") and is_plugin(path.read_text(encoding="utf-8")):
                place = str(path.relative_to(root))
                yield FileResult(place, reason_against(partial(_loaded, path, place)))


def _loaded(path: Path, place: str) -> ModuleType:
    """Loads a file as one of a plugin folder; a workflow by the name that it has in Trinity-RFT."""
    if place.startswith(WORKFLOWS):
        name = place.removesuffix(".py").replace("/", ".")
        module = import_module(name, wanted=place)
        if Path(str(module.__file__)) == path:
            return module
    return load_file(path)


def is_plugin(source: str) -> bool:
    """True for a file or snippet with a class of a part."""
    classes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef))
    return any(PART.search(ast.unparse(base)) for own in classes for base in own.bases)


def snippets(root: Path) -> Iterator[FileResult]:
    """Yields what became of each snippet of the guides that defines a part or lists some."""
    with tempfile.TemporaryDirectory() as folder:
        for guide in sorted((root / GUIDES).glob("*.md")):
            blocks = BLOCK.findall(guide.read_text(encoding="utf-8"))
            for number, (indent, block) in enumerate(blocks, 1):
                source = completed(re.sub(f"^{indent}", "", block, flags=re.MULTILINE))
                if "Registry(" in source or _defines_part(source):
                    path = Path(folder) / f"{guide.stem}_{number}.py"
                    path.write_text("from __future__ import annotations\n" + IMPORTS + source)
                    reason = reason_against(partial(load_file, path))
                    yield FileResult(f"{guide.name}, snippet {number}", reason)


def _defines_part(source: str) -> bool:
    try:
        return is_plugin(source)
    except SyntaxError:
        return False


def completed(source: str) -> str:
    """Returns a snippet in which a body of comments alone is a body."""
    lines = source.rstrip().split("\n")
    code = [i for i, line in enumerate(lines) if line.strip() and not line.strip().startswith("#")]
    for here, after in reversed(list(pairwise([*code, len(lines)]))):
        following = lines[after] if after < len(lines) else ""
        if lines[here].rstrip().endswith(":") and _depth(following) <= _depth(lines[here]):
            lines.insert(here + 1, " " * (_depth(lines[here]) + 4) + "pass")
    return "\n".join(lines) + "\n"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def reason_against(load: Callable[[], ModuleType]) -> str:
    """Loads a file and checks its parts; returns its faults, empty if all is well."""
    try:
        module = load()
        for own in vars(module).values():
            if isinstance(own, type) and own.__module__ == module.__name__:
                check_part(own)
    except UserError as error:
        return " ".join(str(error).split())
    return ""


def check_part(own: type) -> None:
    """Raises UserError for a class that would be refused if a file named it."""
    if getattr(own, "__abstractmethods__", None):
        return
    if issubclass(own, Workflow):
        check_workflow(own, own.__name__)
    if issubclass(own, BaseSelector):
        raise UserError("a selector of your own is not called")
    for bases, adapt in ADAPTERS.items():
        if issubclass(own, bases):
            adapt(own.__name__, own)


if __name__ == "__main__":
    main()
