"""Files of veRL's agents that no run could use are named before it starts."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.unit.explorer.builders import build_plan
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.rft.checks.agents import check_agents
from trinity.types import JsonObject

Check = Callable[..., None]
TOOLS = """
tools:
  - class_name: {name}
    config: {{type: {kind}}}
"""
TOOL_LOOP: JsonObject = {"default_agent_loop": "tool_agent"}
LOOPS = "[{name: my_loop, _target_: my_loops.Loop}]"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """Checks a taskset with these sections, in a folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path / "plugins"))
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "my_tools.py").write_text("class Adds: ...\n")
    (tmp_path / "my_loops.py").write_text("class Loop: ...\n")

    def run(*, agent: JsonObject | None = None, rows: str = "", **multi_turn: str) -> None:
        sections: JsonObject = {"agent": agent or {}, "multi_turn": {**multi_turn}}
        taskset: JsonObject = {
            "default_workflow_type": "verl_agent_workflow",
            "workflow_args": sections,
        }
        plan = build_plan(tmp_path, buffer={"explorer_input": {"taskset": taskset}})
        if rows:
            (tmp_path / "tasks.jsonl").write_text(rows)
        check_agents(plan.stages[0].tasksets[0])

    return run


def write_tools(folder: Path, name: str, kind: str = "native") -> None:
    (folder / "tools.yaml").write_text(TOOLS.format(name=name, kind=kind))


def test_classes_in_the_current_folder_and_in_plugin_folders_are_found(
    tmp_path: Path, check: Check
) -> None:
    (tmp_path / "loops.yaml").write_text(LOOPS)
    write_tools(tmp_path, "my_tools.Adds")
    rows = '{"question": "1", "answer": "2", "agent_name": "tool_agent"}\n{"question": "1"}\n'
    agent = {"agent_loop_config_path": "loops.yaml", "default_agent_loop": "my_loop"}
    check(agent=agent, rows=rows, tool_config_path="tools.yaml", format="hermes")
    check()


def test_a_tool_of_an_earlier_verl_is_that_of_a_copy_in_a_plugin_folder(
    tmp_path: Path, check: Check
) -> None:
    write_tools(tmp_path, "verl.tools.an_earlier_tool.Adds")
    with pytest.raises(UserError, match=r"no module verl\.tools\.an_earlier.* as verl/tools/an_"):
        check(tool_config_path="tools.yaml")
    copy = tmp_path / "plugins" / "verl" / "tools" / "an_earlier_tool.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("from .base_tool import BaseTool\n\nclass Adds(BaseTool): ...\n")
    check(tool_config_path="tools.yaml")


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("my_tools.Subtracts", "native", r"my_tools\.py defines no Subtracts: correct"),
        ("no_tools.Adds", "native", "no module no_tools among .* as no_tools.py"),
        ("my_tools.Adds", "mcp", "`config.type: mcp` is none that veRL's loops run"),
        ("", "native", r"tools\[0\] has no `class_name`"),
        ("Adds", "native", r"`Adds` names no module: write it as my_file\.Adds"),
    ],
)
def test_a_tool_that_would_not_be_found_is_named(
    tmp_path: Path, check: Check, name: str, kind: str, said: str
) -> None:
    write_tools(tmp_path, name, kind)
    with pytest.raises(UserError, match=said):
        check(tool_config_path="tools.yaml")


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"tool_config_path": "none.yaml"}, "`multi_turn.tool_config_path: none.yaml` is no file"),
        ({"function_tool_path": "broken.py"}, r"broken\.py, line 1 cannot be read as Python"),
        ({"tool_config_path": "broken.py"}, "has no list `tools`"),
        ({"tool_config_path": "broken.yaml"}, "cannot be read as YAML"),
        ({"format": "hermit", "agent": TOOL_LOOP}, "`multi_turn.format: hermit` is none .*hermes"),
        ({"max_turns": 3}, "multi_turn has no max_turns: it has enable"),
        ({"agent": {"default_agent_loop": "tools"}}, "no agent loop 'tools', .* tool_agent"),
        ({"agent": {"agent_loop_config_path": "loops.yaml"}}, "defines no Lop: correct"),
    ],
)
def test_what_no_run_could_use_is_said(
    tmp_path: Path, check: Check, sections: JsonObject, said: str
) -> None:
    (tmp_path / "broken.py").write_text("def (")
    (tmp_path / "broken.yaml").write_text("{a: [")
    (tmp_path / "loops.yaml").write_text(LOOPS.replace("Loop}", "Lop}"))
    with pytest.raises(UserError, match=said):
        check(**sections)


def test_rows_of_an_unknown_loop_are_named(check: Check) -> None:
    with pytest.raises(UserError, match=r"no agent loop 'mine', which a row \(`agent_name`\)"):
        check(rows='{"question": "1", "answer": "2", "agent_name": "mine"}\n')


def test_a_format_of_ones_own_and_one_that_no_loop_reads_are_taken(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(format="hermit")
    (tmp_path / "my_tools.py").write_text('@ToolParser.register("hermit")\nclass Adds: ...\n')
    write_tools(tmp_path, "my_tools.Adds")
    check(agent=TOOL_LOOP, format="hermit", tool_config_path="tools.yaml")
    parser = ModuleType("tool_parser")
    vars(parser)["ToolParser"] = SimpleNamespace(_registry={"of_a_plugin": object})
    monkeypatch.setitem(sys.modules, "verl.experimental.agent_loop.tool_parser", parser)
    check(agent=TOOL_LOOP, format="of_a_plugin")
    with pytest.raises(UserError, match=r"give .*of_a_plugin"):
        check(agent=TOOL_LOOP, format="hermit")


@pytest.mark.parametrize("text", ["from .others import *\n", "def __getattr__(name): ...\n"])
def test_a_class_that_a_module_takes_from_elsewhere_is_no_mistake(
    tmp_path: Path, check: Check, text: str
) -> None:
    (tmp_path / "some_tools.py").write_text(text)
    write_tools(tmp_path, "some_tools.Adds")
    check(tool_config_path="tools.yaml")


def test_a_class_is_found_behind_another_module_of_the_same_name(
    tmp_path: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tools.py").write_text("class Others: ...\n")
    write_tools(tmp_path, "my_tools.Adds")
    check(tool_config_path="tools.yaml")
    for place in ("one", "two"):
        (tmp_path / place / "spread_tools").mkdir(parents=True)
        monkeypatch.syspath_prepend(tmp_path / place)
    (tmp_path / "one" / "spread_tools" / "sums.py").write_text("class Adds: ...\n")
    write_tools(tmp_path, "spread_tools.sums.Adds")
    check(tool_config_path="tools.yaml")
