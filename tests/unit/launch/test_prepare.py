"""Preparing a run finds everything that has to be corrected, before anything starts."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.unit.config.builders import config
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.rft.checks.names import check_part_names
from trinity.run.launch.prepare import check_names, prepare_run

TEXT = """\
project: p
name: n
checkpoint_root_dir: {root}
model: {{model_path: /nowhere/model, max_prompt_tokens: 8, max_response_tokens: 8}}
algorithm: {{algorithm_type: {algorithm}}}
buffer:
  batch_size: {batch_size}
  total_steps: 1
  explorer_input:
    default_workflow_type: math_workflo
    taskset: {{path: /nowhere/data}}
"""
OWN = """
from trinity.common.workflows.workflow import WORKFLOWS, SimpleWorkflow, Workflow

@WORKFLOWS.register_module("scored_by_none")
class ScoredByNone(SimpleWorkflow):
    def run(self): ...

@WORKFLOWS.register_module("scored_by_itself")
class ScoredByItself(Workflow):
    def run(self): ...
"""


def refusal(directory: Path, *, algorithm: str = "grpo", batch_size: str = "4") -> str:
    file = directory / "x.yaml"
    file.write_text(TEXT.format(root=directory, algorithm=algorithm, batch_size=batch_size))
    with pytest.raises(UserError) as refused:
        prepare_run(file, None)
    return str(refused.value)


def test_keys_and_what_follows_from_them(tmp_path: Path) -> None:
    said = refusal(tmp_path, algorithm="grop", batch_size="many")
    assert "buffer.batch_size" in said and "did you mean `grpo`" in said


def test_model_data_and_names(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert "/nowhere/model" in said and "/nowhere/data" in said
    assert "close to it: math_workflow" in said


def complaint(taskset: Mapping[str, object]) -> str:
    plan = plan_experiment(config(buffer={"explorer_input": {"taskset": taskset}}))
    with pytest.raises(UserError) as caught:
        check_names(plan)
    return str(caught.value)


@pytest.mark.parametrize("taskset", [{}, {"default_workflow_type": "math_rm_workflow"}])
def test_a_workflow_without_a_reward_of_its_own_needs_one(taskset: dict[str, object]) -> None:
    said = complaint(taskset)
    assert "stage `main`, taskset `train`" in said
    assert "default_reward_fn_type" in said


def test_config_check_says_so_of_a_workflow_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is imported by the check anyway; one that scores by itself needs no reward."""
    (tmp_path / "own_flows_without_rewards.py").write_text(OWN)
    monkeypatch.setenv("TRINITY_PLUGIN_DIRS", str(tmp_path))

    def check(**taskset: str) -> None:
        given = {"explorer_input": {"taskset": taskset}}
        check_part_names(plan_experiment(config(buffer=given)).stages)

    with pytest.raises(UserError, match="scored_by_none has no reward of its own: set `default_"):
        check(default_workflow_type="scored_by_none")
    check(default_workflow_type="scored_by_none", default_reward_fn_type="exact_match_reward")
    check(default_workflow_type="scored_by_itself")


def test_arguments_that_the_reward_does_not_take_are_named() -> None:
    reward = {
        "default_reward_fn_type": "exact_match_reward",
        "reward_fn_args": {"ignore_cases": True},
    }
    assert "ignore_cases" in complaint(reward)


def test_a_workflow_must_be_one() -> None:
    assert "pathlib.Path" in complaint({"default_workflow_type": "pathlib.Path"})


def test_a_plan_whose_names_fit_is_taken() -> None:
    taskset = {
        "default_reward_fn_type": "exact_match_reward",
        "reward_fn_args": {"ignore_case": True},
    }
    check_names(plan_experiment(config(buffer={"explorer_input": {"taskset": taskset}})))


def test_a_default_that_is_wrong_is_told_once() -> None:
    both = {
        "default_reward_fn_type": "exact_mach_reward",
        "taskset": {"name": "sums", "path": "/data/train.jsonl"},
        "eval_tasksets": [{"name": "held_out", "path": "/data/test.jsonl"}],
    }
    with pytest.raises(UserError) as caught:
        check_names(plan_experiment(config(buffer={"explorer_input": both})))
    [said] = str(caught.value).splitlines()
    assert said.startswith("stage `main`, tasksets `sums`, `held_out`: there is no reward")


def test_one_mistake_hides_no_other() -> None:
    said = complaint(
        {"default_workflow_type": "math_workflo", "default_reward_fn_type": "math_rewrd"}
    )
    assert "close to it: math_workflow" in said and "close to it: math_reward" in said
