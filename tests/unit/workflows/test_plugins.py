"""A workflow or reward of one's own, in one file."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.config.builders import stage, write_rows
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.priority import PRIORITIES
from trinity.errors import UserError
from trinity.operators import OPERATORS
from trinity.plugins import PLUGIN_DIRS_VARIABLE, REWARDS, WORKFLOWS, Registry, load_plugins
from trinity.rft.checks.names import check_row_workflows

REWARD = """
from trinity.plugins import REWARDS
from trinity.rewards.reward import RewardFn

@REWARDS.register_module("{name}")
class Own(RewardFn):
    def __call__(self, *, response):
        return {{"own": 1.0}}
"""


@pytest.fixture(autouse=True)
def fresh_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_a_file_in_the_current_folder_is_found_by_its_dotted_path(tmp_path: Path) -> None:
    (tmp_path / "my_rewards.py").write_text(REWARD.format(name="by_path"))
    reward = REWARDS.get("my_rewards.Own")
    assert reward is REWARDS.get("by_path")


def test_a_plugin_folder_gives_names(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "anything.py").write_text(REWARD.format(name="by_folder"))
    load_plugins([folder])
    load_plugins([folder])
    assert REWARDS.get("by_folder").__name__ == "Own"


def test_a_file_in_a_plugin_folder_is_found_by_its_dotted_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "anything_else.py").write_text(REWARD.format(name="by_both"))
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(folder))
    load_plugins([folder])
    assert REWARDS.get("anything_else.Own") is REWARDS.get("by_both")
    with pytest.raises(UserError, match=f"no module 'nothing_there' in .*, {folder} or among"):
        REWARDS.get("nothing_there.Own")


def test_a_file_below_a_plugin_folder_is_found_by_its_dotted_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user of Trinity-RFT has it in the folder from which the run was started there."""
    shop = tmp_path / "plugins" / "shop" / "inner"
    shop.mkdir(parents=True)
    (shop / "prices.py").write_text("PRICE = 1.0\n")
    source = REWARD.format(name="below") + "\nfrom .prices import PRICE\n"
    (shop / "rewards.py").write_text(source)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path / "plugins"))
    assert REWARDS.get("shop.inner.rewards.Own") is REWARDS.get("below")
    with pytest.raises(UserError, match=r"no module 'trinity.plugins.shop.nothing'"):
        REWARDS.get("shop.nothing.Own")


def test_a_workflow_that_rows_name_is_checked(tmp_path: Path) -> None:
    flow = "from trinity.common.workflows.workflow import Workflow\n\nclass Never(Workflow):\n"
    (tmp_path / "flows.py").write_text(
        f"{flow}    def run(self): ...\n    async def reset(self, task): ...\n"
    )
    for name, sentence in (
        ("flows.Never", "flows.Never.reset is a coroutine.*never awaited.*column `kind`"),
        ("math_workflw", "close to it: .*math_workflow.*column `kind`"),
        ("math_workflow", ""),
    ):
        file = write_rows(tmp_path / "a.jsonl", {"prompt": "a", "response": "b", "kind": name})
        given = {"path": file, "format": {"workflow_key": "kind"}}
        [taskset] = stage(buffer={"explorer_input": {"taskset": given}}).tasksets
        if sentence:
            with pytest.raises(UserError, match=sentence):
                check_row_workflows(taskset)
        else:
            check_row_workflows(taskset)


def test_two_folders_may_hold_files_of_one_name(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rewards.py").write_text(REWARD.format(name=f"from_{name}"))
    load_plugins([tmp_path / "one", tmp_path / "two"])
    assert {"from_one", "from_two"} <= set(REWARDS.names())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ny = x / 0\n", r"broken\.py, line 2: ZeroDivisionError"),
        ("x = (\n", r"broken\.py, line 1"),
        ("import not_there_at_all\n", r"broken\.py, line 1: ModuleNotFoundError"),
        (
            "from not_there_at_all.agents import Agent\n",
            "install the package that has `not_there_at_all` where `trinity` and the explorer run",
        ),
    ],
)
def test_a_plugin_that_fails_is_named_with_its_line(
    tmp_path: Path, source: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(source)
    with pytest.raises(UserError, match=message):
        load_plugins([tmp_path])
    with pytest.raises(UserError, match=message):
        REWARDS.get("broken.Own")


def test_a_file_imports_others_of_its_folder_and_those_with_underscores_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "plugins"
    (folder / "b_tools").mkdir(parents=True)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(folder))
    (folder / "__main__.py").write_text("raise SystemExit('is not imported')\n")
    (folder / "b_tools" / "names.py").write_text("END = 'neighbour'\n")
    (folder / "b_helpers.py").write_text("from .b_tools.names import END\nNAME = 'by_its_' + END\n")
    source = "from .b_helpers import NAME\n" + REWARD.format(name="x").replace('"x"', "NAME")
    (folder / "a_reward.py").write_text(source)
    load_plugins([folder])
    assert REWARDS.get("by_its_neighbour") is REWARDS.get("a_reward.Own")


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_plugins([tmp_path / "nowhere"])


def test_an_unknown_name_lists_what_is_close() -> None:
    with pytest.raises(UserError, match="close to it: simple_workflow"):
        WORKFLOWS.get("simple_workflw")


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no module 'my_rewads'"):
        REWARDS.get("my_rewads.Own")


def test_a_name_missing_in_a_module_is_told_with_what_is_close(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("class Accuracy: ...\n")
    with pytest.raises(UserError, match="defines no 'Acuracy'; close to it: Accuracy"):
        REWARDS.get("mine.Acuracy")


def test_a_name_is_given_once() -> None:
    registry: Registry[str] = Registry("thing", {"builtin": "os.sep"})
    registry.register("mine", "a")
    registry.register("mine", "a")
    for name in ("mine", "builtin"):
        with pytest.raises(UserError, match="registered already"):
            registry.register(name, "b")


def test_a_file_that_is_a_plugin_and_is_named_by_its_path_registers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "examples" / "shop"
    folder.mkdir(parents=True)
    (folder / "by_two_paths.py").write_text(REWARD.format(name="by_two_paths"))
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(folder))
    load_plugins([folder])
    first = REWARDS.get("by_two_paths")
    assert REWARDS.get("examples.shop.by_two_paths.Own").__qualname__ == "Own"
    assert REWARDS.get("by_two_paths") is first


def test_one_file_that_gives_a_name_twice_is_refused(tmp_path: Path) -> None:
    source = REWARD.format(name="twice")
    (tmp_path / "gives_twice.py").write_text(source + source)
    with pytest.raises(UserError, match=r"gives_twice\.py, line 13.*registered already"):
        load_plugins([tmp_path])


def test_a_registry_takes_the_arguments_of_trinity_rfts() -> None:
    registry: Registry[type] = Registry("thing")
    registry.register_module("lazy", lazy=True)(dict)
    registry.register_module(None)(list)
    registry.register_module("lazy", set, True)
    assert registry.modules == {"lazy": set, "list": list}


@pytest.mark.parametrize("registry", [REWARDS, WORKFLOWS, ADVANTAGES, OPERATORS, PRIORITIES])
@pytest.mark.parametrize(
    "form", ["{file}.f", "{up}.f", "..{stem}.f", "./{stem}.f", "a/../{stem}.f"]
)
def test_a_name_with_a_separator_runs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registry: Registry[object], form: str
) -> None:
    (tmp_path / "plugins").mkdir()
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path / "plugins"))
    (tmp_path / "any_file.py").write_text("import sys\nsys.was_run = True\ndef f(): ...\n")
    up = "../any_file"
    name = form.format(file=tmp_path / "any_file", up=up, stem="any_file")
    with pytest.raises(UserError, match="cannot be the name of"):
        registry.get(name)
    assert not hasattr(sys, "was_run")


def test_a_registered_name_may_hold_anything() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one/two", 12)
    assert registry.get("one/two") == 12


def test_a_plugin_file_with_a_dash_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plugins").mkdir()
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path / "plugins"))
    (tmp_path / "plugins" / "my-rewards.py").write_text(REWARD.format(name="with_a_dash"))
    assert REWARDS.get("my-rewards.Own").__name__ == "Own"
