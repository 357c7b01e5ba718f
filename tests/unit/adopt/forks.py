"""A small fork in the style of people's: every file of it leaves a trace once it is imported."""

import ast
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from trinity.user_code.adopt.upstream import (
    DIGEST_BYTES,
    ID_BYTES,
    Upstream,
    blob_id,
    definition_digest,
    definition_text,
)

TRACE = """
with open({path!r}, "a") as _trace:
    _trace.write(__name__ + "\\n")
"""
BASE = """
from trinity.common.workflows import WORKFLOWS, Workflow

class SimpleWorkflow(Workflow):
    def run(self):
        return "as released"

class MathWorkflow(SimpleWorkflow):
    pass

def checked(value):
    return value
"""
CHANGED = (
    BASE.replace("as released", "changed by the fork")
    + """
GREETING = "Dear "

def polite(text):
    return GREETING + checked(text)

@WORKFLOWS.register_module("polite_workflow")
class PoliteWorkflow(SimpleWorkflow):
    def run(self):
        return [polite("user")]
"""
)
ALGORITHMS = """
class AlgorithmType:
    repeat_times = 1
"""
FILES: Mapping[str, str] = {
    "setup.py": "",
    "conftest.py": "",
    "trinity/__init__.py": '__version__ = "0.5.1"\n',
    "trinity/common/constants.py": "",
    "trinity/common/workflows/__init__.py": """
from trinity.common.workflows.workflow import PoliteWorkflow
from trinity.utils.registry import Registry

WORKFLOWS = Registry("workflows", default_mapping={
    "shop_workflow": "trinity.common.workflows.envs.shop.flow.ShopWorkflow",
    "math_workflow": "trinity.common.workflows.workflow.MathWorkflow",
})
""",
    "trinity/common/workflows/workflow.py": CHANGED,
    "trinity/common/workflows/envs/shop/flow.py": """
from typing import Optional
from trinity.common.config import BufferConfig, ShopConfig
from trinity.common.workflows import PoliteWorkflow, Task
from trinity.common.workflows.envs.shop import prices
from .words import THANKS

class ShopWorkflow(PoliteWorkflow):
    config: Optional[ShopConfig] = None

    def run(self):
        import shopsim
        return [*super().run(), prices.cheapest(), THANKS]
""",
    "trinity/common/workflows/envs/shop/prices.py": "def cheapest():\n    return 3\n",
    "trinity/common/workflows/envs/shop/words.py": 'THANKS = "thanks"\n',
    "trinity/common/workflows/envs/shop/unused.py": 'raise RuntimeError("never")\n',
    "trinity/algorithm/algorithm.py": ALGORITHMS
    + """
from trinity.utils.registry import Registry

ALGORITHM_TYPE = Registry("algorithm")

@ALGORITHM_TYPE.register_module("shop_grpo")
class ShopAlgorithm(AlgorithmType):
    @classmethod
    def default_config(cls):
        return {"repeat_times": 4, "advantage_fn": "shop", "policy_loss_fn": "ppo"}
""",
    "trinity/algorithm/advantage_fn/shop_advantage.py": """
from trinity.algorithm.advantage_fn import ADVANTAGE_FN
from trinity.algorithm.advantage_fn import GroupAdvantage

@ADVANTAGE_FN.register_module("shop")
class ShopAdvantage(GroupAdvantage):
    def group_experiences(self, exps):
        return {"": exps}

    def calculate_group_advantage(self, group_id, exps):
        return exps, {}
""",
    "trinity/buffer/operators/shop_filter.py": """
from trinity.buffer.operators import EXPERIENCE_OPERATORS, ExperienceOperator

@EXPERIENCE_OPERATORS.register_module("shop_filter")
class ShopFilter(ExperienceOperator):
    def process(self, exps):
        return exps, {}
""",
    "rl/helpers.py": "def half(value):\n    return value / 2\n",
    "rl/rewards.py": """
from helpers import half
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn

class Short(RewardFn):
    def __call__(self, response, **kwargs):
        return {"short": half(len(response))}

if "short_reward" not in REWARD_FUNCTIONS.modules:
    REWARD_FUNCTIONS.register_module("short_reward")(Short)
""",
}
"""Files by path; `know_base` says which of them a release has, and in what form."""


def write_fork(root: Path, files: Mapping[str, str] = FILES, **changes: str) -> Path:
    """Writes a fork, whose files append their names to `trace` when they are imported."""
    for name, text in {**files, **changes}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        trace = TRACE.format(path=str(root.parent / "trace"))
        path.write_text(text + trace if text is not None else "")
    return root


def traced(root: Path) -> list[str]:
    """Returns the modules that were imported."""
    trace = root.parent / "trace"
    return trace.read_text().splitlines() if trace.exists() else []


def know_base(monkeypatch: pytest.MonkeyPatch, **bases: str) -> None:
    """Makes a table in which Trinity-RFT has released the bases of the changed files alone."""
    released = {
        "trinity/common/workflows/workflow.py": textwrap.dedent(BASE),
        "trinity/common/workflows/__init__.py": "",
        "trinity/algorithm/algorithm.py": ALGORITHMS,
        **bases,
    }
    table = Upstream(
        {path: frozenset([blob_id(text.encode())[:ID_BYTES]]) for path, text in released.items()},
        {path: _definitions(text) for path, text in released.items()},
    )
    monkeypatch.setattr(Upstream, "read", lambda: table)


def _definitions(text: str) -> dict[str, frozenset[bytes]]:
    lines = text.splitlines()
    nodes = [
        node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    digests = {node.name: definition_digest(definition_text(lines, node)) for node in nodes}
    assert all(len(digest) == DIGEST_BYTES for digest in digests.values())
    return {name: frozenset([digest]) for name, digest in digests.items()}
