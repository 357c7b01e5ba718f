"""What a workflow defines and nothing would call is refused before a run."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS, load_plugins
from trinity.rft.checks.workflow import check_workflow, has_no_reward, notice_of
from trinity.workflows.workflow import Workflow

HEAD = """
from trinity.common.workflows import workflow as theirs, step_wise_workflow as steps
from trinity.workflows import simple_workflow, multi_turn, step_wise, workflow
class Part({base}):
    {body}
"""
WALK = "max_step_num = 2\n    "


def checked(folder: Path, base: str, body: str) -> str:
    """Checks a class with this body, from a file of a plugin folder; returns the notice of it."""
    path = folder / "parts_for_checks.py"
    path.write_text(HEAD.format(base=base, body=body))
    registry: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), registry)
    part = registry["Part"]
    check_workflow(part, "Part")
    assert isinstance(part, type) and issubclass(part, Workflow)
    return notice_of(part, "Part")


def test_a_number_of_runs_that_is_never_set_is_a_notice(tmp_path: Path) -> None:
    body = "def run(self): ...\n    def set_repeat_times(self, repeat_times, run_id_base): ..."
    notice = checked(tmp_path, "theirs.Workflow", body)
    assert "`set_repeat_times`, which is not called: it makes one run at a time" in notice
    assert checked(tmp_path, "theirs.Workflow", f"can_repeat = True\n    {body}") == ""


@pytest.mark.parametrize(
    ("base", "body", "told"),
    [
        ("simple_workflow.SimpleWorkflow", "def run(self): ...", "`run`, which is never called"),
        ("multi_turn.MultiTurnWorkflow", "async def run(self): ...", "run is a coroutine"),
        (
            "multi_turn.MultiTurnWorkflow",
            "def run(self): ...\nclass Part(Part):\n    async def run_async(self): ...",
            "`run_async`, which is never called",
        ),
        ("simple_workflow.SimpleWorkflow", "def format_messages(self): ...", "define `messages`"),
        ("simple_workflow.SimpleWorkflow", "can_repeat = True", "`can_repeat`, which has no"),
        ("theirs.AsyncSimpleWorkflow", "def run(self): ...", "set `is_async = False`"),
        ("theirs.SimpleWorkflow", "async def run_async(self): ...", "set `is_async = True`"),
        ("theirs.SimpleWorkflow", "async def run(self): ...", "run is a coroutine"),
        ("theirs.SimpleWorkflow", "async def reset(self, task): ...", "reset is a coroutine"),
        ("theirs.Workflow", "def run_async(self): ...", "no run: set `is_async = True`"),
        (
            "theirs.MathRULERWorkflow",
            "def get_ruler_scores(self, responses, judger): ...",
            "`get_ruler_scores`, which is never called: define `judge_messages`",
        ),
        (
            "theirs.Workflow",
            "can_repeat = True\n    def run(self): ...",
            "`can_repeat` but no `set_repeat_times`",
        ),
        (
            "theirs.Workflow",
            "can_reset = True\n    def run(self): ...",
            "`can_reset` but no `reset`",
        ),
        (
            "theirs.Workflow",
            "repeatable = True\n    def run(self): ...",
            "`repeatable`, which is not read",
        ),
        ("steps.StepWiseRewardWorkflow", f"{WALK}def step(self, step_num): ...", "no `reward`"),
        (
            "steps.StepWiseRewardWorkflow",
            f"{WALK}async def step(self, step_num): ...\n    def reward(self, exps, step_num): ...",
            "step is a coroutine",
        ),
        (
            "steps.AsyncStepWiseRewardWorkflow",
            f"{WALK}def step(self, step_num): ...\n    def reward(self, exps, step_num): ...",
            "`step` is with `is_async = False`",
        ),
        (
            "steps.RewardPropagationWorkflow",
            "def step(self, step_num): ...\n    def reward(self, exps): ...",
            "no `max_step_num`",
        ),
    ],
)
def test_what_is_never_called_is_refused(base: str, body: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        checked(tmp_path, base, body)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("base", "body"),
    [
        ("simple_workflow.SimpleWorkflow", "async def run_async(self): ..."),
        ("simple_workflow.SimpleWorkflow", "is_async = False\n    def run(self): ..."),
        ("workflow.Workflow", "def run(self): ...\n    async def run_async(self): ..."),
        ("theirs.SimpleWorkflow", "def run(self): ..."),
        ("theirs.SimpleWorkflow", "def reset(self, task): super().reset(task)"),
        ("theirs.AsyncMathWorkflow", "def format_messages(self): ..."),
        (
            "theirs.MathRULERWorkflow",
            "def get_ruler_scores(self, responses, judger): ...\n    def run(self): ...",
        ),
        ("theirs.Workflow", "asynchronous = True\n    async def run_async(self): ..."),
        (
            "theirs.MultiTurnWorkflow",
            "can_repeat = True\n    def run(self): ...",
        ),
        (
            "steps.AsyncStepWiseRewardWorkflow",
            f"{WALK}async def step_async(self, step_num): ...\n"
            "    async def reward_async(self, exps, step_num): ...",
        ),
    ],
)
def test_control_what_is_called_passes(base: str, body: str, tmp_path: Path) -> None:
    checked(tmp_path, base, body)


@as_subtests("name", sorted(WORKFLOWS.builtins))
def test_every_workflow_that_comes_with_us_passes(name: str) -> None:
    check_workflow(WORKFLOWS.get(name), name)


def test_a_workflow_without_a_reward_of_its_own_is_known(tmp_path: Path) -> None:
    (tmp_path / "with_and_without.py").write_text(
        "from trinity.common.workflows import WORKFLOWS\n"
        "from trinity.common.workflows.workflow import SimpleWorkflow, MathWorkflow\n"
        "WORKFLOWS.register_module('test_without_reward')(type('A', (SimpleWorkflow,), {}))\n"
        "WORKFLOWS.register_module('test_with_reward')(type('B', (MathWorkflow,), {}))\n"
    )
    load_plugins([tmp_path])
    assert has_no_reward(WORKFLOWS.get("test_without_reward"))
    assert not has_no_reward(WORKFLOWS.get("test_with_reward"))
