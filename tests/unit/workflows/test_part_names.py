"""Names and import paths of Trinity-RFT are known here."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.plugins import (
    PLUGIN_DIRS_VARIABLE,
    REWARD_PATHS,
    REWARDS,
    WORKFLOW_PATHS,
    WORKFLOWS,
    Registry,
    load_plugins,
)
from trinity.rft.import_hook import RENAMED

NAMES_FILE = Path(__file__).with_name("trinity_rft_names.txt")


def rft_names(kind: str) -> list[str]:
    """Names of Trinity-RFT 0.6.0, a line each: kind and name."""
    lines = (line.split() for line in NAMES_FILE.read_text().splitlines())
    return [name for of, name in lines if of == kind]


@as_subtests("name", rft_names("workflow"))
def test_every_workflow_of_trinity_rft_runs_or_says_what_to_do(name: str) -> None:
    if name in WORKFLOW_PATHS:
        assert WORKFLOWS.get(name).__name__
        return
    fresh: Registry[object] = Registry("workflow", {}, "trinity.rft.absent.WORKFLOWS")
    with pytest.raises(UserError, match=rf"{name}' does not come with Trinity: it .*: ") as caught:
        fresh.get(name)
    assert "write it as a plugin" in str(caught.value) or "text alone" in str(caught.value)


@pytest.mark.parametrize("name", rft_names("reward"))
def test_every_reward_of_trinity_rft_is_here(name: str) -> None:
    assert REWARDS.get(name)


@as_subtests("name", sorted({*WORKFLOW_PATHS, *REWARD_PATHS}))
def test_every_name_is_a_class_that_is_there(name: str) -> None:
    found = WORKFLOWS.get(name) if name in WORKFLOW_PATHS else REWARDS.get(name)
    assert isinstance(found, type) and found.__doc__


def test_the_asynchronous_name_is_the_same_class() -> None:
    for name in WORKFLOW_PATHS:
        if name.startswith("async_"):
            assert WORKFLOWS.get(name) is WORKFLOWS.get(name.removeprefix("async_"))


def test_a_plugin_may_take_the_name_of_a_workflow_that_is_not_here() -> None:
    registry: Registry[str] = Registry("workflow", {}, "trinity.rft.absent.WORKFLOWS")
    registry.register("alfworld_workflow", "mine")
    assert registry.get("alfworld_workflow") == "mine"
    with pytest.raises(UserError, match="close to it: webshop_workflow"):
        registry.get("webshop_workflw")


@as_subtests("name", sorted(RENAMED))
def test_what_a_plugin_of_trinity_rft_imports_is_ours(name: str, tmp_path: Path) -> None:
    source = f"from trinity.common.workflows.workflow import {name}\n"
    if name == "Workflow":
        source += "import trinity.common.rewards\nimport trinity.explorer.workflow_runner\n"
        source += "from trinity.rft.workflows import workflow as ours\n"
        source += "assert Workflow is ours.Workflow\n"
    (tmp_path / f"imports_{name}.py").write_text(source)
    load_plugins([tmp_path])


def test_a_plugin_of_trinity_rft_is_loaded_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "theirs.py").write_text("""
from typing import List, Optional
from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.utils.log import get_logger

logger = get_logger(__name__)

@REWARD_FUNCTIONS.register_module("their_reward")
class TheirReward(RewardFn):
    def __call__(self, response, truth=None, **kwargs):
        return {"score": 1.0}

@WORKFLOWS.register_module("their_workflow")
class TheirWorkflow(Workflow):
    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)

    def run(self) -> List[Experience]:
        logger.info("running")
        return self.model.chat([{"role": "user", "content": "a"}])
""")
    load_plugins([tmp_path])
    assert WORKFLOWS.get("their_workflow").__name__ == "TheirWorkflow"
    assert REWARDS.get("their_reward")


def test_a_file_of_a_plugin_folder_has_the_place_that_it_has_in_trinity_rft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    (tmp_path / "envs_of_mine").mkdir()
    (tmp_path / "envs_of_mine" / "words.py").write_text("WORD = 'from a folder'\n")
    (tmp_path / "a_scorer.py").write_text(
        "from trinity.plugins import REWARDS\n"
        "@REWARDS.register_module('a_scorer')\n"
        "def score(response): return 1.0\n"
    )
    (tmp_path / "b_user.py").write_text(
        "from trinity.common.workflows.envs_of_mine.words import WORD\n"
        "from trinity.plugins.a_scorer import score\n"
        "assert WORD == 'from a folder'\n"
    )
    load_plugins([tmp_path])
    assert REWARDS.get("a_scorer")


def test_a_workflow_of_theirs_has_its_name_once_its_file_is_in_a_plugin_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"as envs/webshop/webshop_workflow\.py"):
        WORKFLOWS.get("webshop_workflow")
    (tmp_path / "envs" / "webshop").mkdir(parents=True)
    (tmp_path / "envs" / "webshop" / "webshop_workflow.py").write_text(
        "from trinity.common.workflows.workflow import MultiTurnWorkflow\n"
        "class WebShopWorkflow(MultiTurnWorkflow):\n"
        "    def run(self): return []\n"
    )
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    assert WORKFLOWS.get("webshop_workflow").__name__ == "WebShopWorkflow"


def test_a_dotted_path_of_theirs_is_taken_as_it_is() -> None:
    path = "trinity.common.workflows.customized_math_workflows.MathBoxedWorkflow"
    assert WORKFLOWS.get(path).__module__ == "trinity.rft.workflows.math"
    with pytest.raises(UserError, match=r"nothing\.Nothing is of Trinity-RFT and not here"):
        WORKFLOWS.get("trinity.common.workflows.nothing.Nothing")


def test_a_file_that_is_in_no_plugin_folder_cannot_be_imported(tmp_path: Path) -> None:
    (tmp_path / "c_user.py").write_text("import trinity.plugins.of_nobody\n")
    with pytest.raises(UserError, match=r"line 1: ModuleNotFoundError: No module named"):
        load_plugins([tmp_path])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("from trinity.common.experience import Experiences", "a batch is the trainer's"),
        ("from trinity.explorer.workflow_runner import WorkflowRunner", "runs a workflow"),
        ("from trinity.common.models.mm_utils import build_mm_message", "format.image_key"),
        ("import trinity.utils.log as log\nlog.nothing", "docs/workflows.md"),
    ],
)
def test_a_name_that_is_not_here_says_what_to_use(
    tmp_path: Path, source: str, message: str
) -> None:
    (tmp_path / "absent.py").write_text(source + "\n")
    with pytest.raises(UserError, match=rf"absent\.py.*line \d: .*{message}"):
        load_plugins([tmp_path])


def test_a_reward_of_a_package_that_nobody_installs_says_which() -> None:
    with pytest.raises(UserError, match="the package rm-gallery"):
        REWARDS.check_name("rm_gallery_reward")
