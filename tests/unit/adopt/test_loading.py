"""Parts of a fork run from the files that were read, and from no other file of it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.adopt.forks import know_base, traced, write_fork
from trinity.cli.adopt import adopt
from trinity.errors import UserError
from trinity.user_code.adopt import loading
from trinity.user_code.adopt.manifest import Adopted, adopted_paths

REPOSITORY = Path(__file__).parents[3]
SEEN = """
import json, sys
from trinity.plugins import REWARDS, WORKFLOWS, load_plugins
from trinity.errors import UserError
load_plugins([])
def said(call):
    try:
        return call()
    except UserError as error:
        return str(error)
{calls}
"""
CALLS = """
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.common.workflows.workflow import SimpleWorkflow
from trinity.operators import OPERATORS
sys.modules["shopsim"] = sys
shop = WORKFLOWS.get("shop_workflow")
print(json.dumps({
    "run": shop.run(object.__new__(shop)),
    "own base": issubclass(shop, SimpleWorkflow),
    "math": WORKFLOWS.get("math_workflow").__module__,
    "advantage": ADVANTAGES.is_own("shop"),
    "algorithm": ALGORITHM_TYPES.get("shop_grpo").advantage_fn,
    "operator": OPERATORS.is_own("shop_filter"),
    "reward": REWARDS.get("short_reward")()(response="four"),
    "absent": said(lambda: sys.modules[shop.__module__].ShopConfig()),
    "file": sys.modules[shop.__module__].__file__,
    "path": sys.path,
}))
"""


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    know_base(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return write_fork(tmp_path / "fork")


def in_process(fork: Path, calls: str, **environment: str) -> str:
    """Runs lines in the fork's folder, as services run; returns what they print, or the error."""
    variables = {"TRINITY_ADOPTED": str(fork.parent / "adopted.json"), **environment}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SEEN.format(calls=calls)],
        cwd=fork,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_parts_run_with_the_bases_of_this_package(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    seen = json.loads(in_process(fork, CALLS))
    assert seen["run"] == ["Dear user", 3, "thanks"]
    assert seen["own base"] and seen["advantage"] and seen["operator"]
    assert seen["math"] == "trinity.workflows.math_workflow"
    assert seen["algorithm"] == "shop"
    assert seen["reward"] == {"short": 2.0}
    assert "trinity.common.config.ShopConfig of Trinity-RFT is not here" in seen["absent"]
    assert seen["file"] == str(fork / "trinity/common/workflows/envs/shop/flow.py")
    listed = {file.module for file in Adopted.read(fork.parent / "adopted.json").files}
    assert set(traced(fork)) <= listed, "no file is imported that is not listed"
    assert str(fork) not in seen["path"]


OUTLINED = """
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.operators import OPERATORS
from trinity.rft.checks.workflow import check_workflow
import inspect
shop = WORKFLOWS.get("shop_workflow")
check_workflow(shop, "shop_workflow")
print(json.dumps({
    "run": said(lambda: shop.run(object.__new__(shop))),
    "bases": [base.__name__ for base in shop.__mro__[:3]],
    "words": "shopsim" in shop.run.__code__.co_names,
    "source": "cheapest" in inspect.getsource(shop),
    "advantage": ADVANTAGES.is_own("shop"),
    "algorithm": ALGORITHM_TYPES.get("shop_grpo").advantage_fn,
    "operator": OPERATORS.is_own("shop_filter"),
    "reward": said(lambda: REWARDS.get("short_reward")()(response="four")),
}))
"""


def test_a_check_knows_the_parts_and_runs_no_line_of_their_files(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    (fork.parent / "security").mkdir()
    (fork.parent / "security/token").write_text("token")
    secure = {"TRINITY_SECURITY_DIR": str(fork.parent / "security")}
    seen = json.loads(in_process(fork, OUTLINED, TRINITY_ADOPTED_AS="outlines", **secure))
    assert traced(fork) == []
    nothing = "a check runs nothing of a fork"
    assert nothing in seen["run"] and nothing in seen["reward"]
    assert seen["bases"] == ["ShopWorkflow", "PoliteWorkflow", "SimpleWorkflow"]
    assert seen["words"] and seen["source"] and seen["advantage"] and seen["operator"]
    assert seen["algorithm"] == "shop"


FILE = """
name: shop
algorithm: {algorithm_type: shop_grpo}
model: {model_path: /models/tiny, max_model_len: 64}
cluster: {gpu_per_node: 2}
buffer:
  batch_size: 8
  explorer_input:
    taskset: {path: /data/rows, default_workflow_type: shop_workflow}
    default_reward_fn_type: short_reward
"""


def commanded(fork: Path, *words: str) -> str:
    """Runs a command of `trinity` with the fork's parts."""
    (fork.parent / "shop.yaml").write_text(FILE)
    command = [sys.executable, "-m", "trinity.cli.main", *words, "--adopted", "adopted.json"]
    variables = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        command, cwd=fork.parent, env=variables, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_commands_that_only_read_run_nothing_of_a_fork(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    said = commanded(fork, "config", "check", "shop.yaml")
    assert "shop.yaml: " in said and "error" not in said
    shown = commanded(fork, "config", "show", "shop.yaml")
    assert "advantage_fn: shop" in shown
    commanded(fork, "deploy", "render", "shop.yaml", "--output", "deployed")
    assert traced(fork) == []
    commanded(fork, "run", "shop.yaml", "--dry-run")
    assert "trinity.common.workflows.envs.shop.flow" in traced(fork)


def test_a_file_that_changed_stops_the_start_unless_changes_are_accepted(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    with (fork / "trinity/common/workflows/envs/shop/words.py").open("a") as words:
        words.write('THANKS = "changed"\n')
    said = in_process(fork, CALLS)
    assert "shop/words.py in" in said and "--accept-changes" in said
    accepted = in_process(fork, CALLS, TRINITY_ADOPTED_CHANGES="accepted")
    assert json.loads(accepted)["run"][-1] == "changed"


def test_a_part_that_fails_to_load_says_so_when_it_is_named(fork: Path) -> None:
    (fork / "rl/helpers.py").write_text("import not_installed_anywhere\n")
    adopt(fork, None, fork.parent)
    calls = 'print(said(lambda: REWARDS.get("short_reward")), WORKFLOWS.get("shop_workflow"))'
    said = in_process(fork, calls)
    assert "the reward 'short_reward' does not load: rl/rewards.py, line" in said
    assert "not_installed_anywhere" in said and "ShopWorkflow" in said
    assert in_process(fork, calls, TRINITY_ADOPTED_AS="outlines") == said


def test_credentials_need_the_operators_word(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    (fork.parent / "security").mkdir()
    (fork.parent / "security/token").write_text("token")
    secure = {"TRINITY_SECURITY_DIR": str(fork.parent / "security")}
    calls = 'print(WORKFLOWS.get("shop_workflow").__name__)'
    assert "TRINITY_TRUST_ADOPTED=true" in in_process(fork, calls, **secure)
    assert traced(fork) == []
    allowed = in_process(fork, calls, TRINITY_TRUST_ADOPTED="true", **secure)
    assert allowed == "ShopWorkflow"


def test_no_module_of_this_package_or_of_python_is_replaced(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    manifest = fork.parent / "adopted.json"
    text = manifest.read_text()
    for module in ("trinity.plugins", "trinity.common.experience", "json"):
        manifest.write_text(text.replace('"module": "helpers"', f'"module": "{module}"'))
        said = in_process(fork, "print('loaded')")
        assert f"would replace the module {module}" in said
    assert traced(fork) == []


def test_a_box_is_given_the_file_and_the_checkout(fork: Path) -> None:
    adopt(fork, None, fork.parent)
    manifest = str(fork.parent / "adopted.json")
    assert adopted_paths({"TRINITY_ADOPTED": manifest}) == (manifest, str(fork))
    assert adopted_paths({}) == ()


def test_a_class_of_a_name_that_is_absent_raises_once_it_is_used() -> None:
    absent = loading.absent_class("trinity.common.config.ShopConfig", "the reason")
    assert absent.__name__ == "ShopConfig" and (absent | None)
    with pytest.raises(UserError, match="ShopConfig of Trinity-RFT is not here: the reason"):
        absent.prices  # type: ignore[attr-defined]  # noqa: B018
