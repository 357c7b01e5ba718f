"""Answers that a judge compares, and a policy that is its own judge."""

import asyncio

import pytest

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.rft.workflows.ruler import parse_scores
from trinity.types import Experience, JsonObject
from trinity.workflows.hosting import HostedRuns, IdleWorkflows, TaskInputs

ROW: JsonObject = {"question": "1+1=", "answer": "2"}
RIGHT, WRONG = "<think>\na\n</think>\n<answer>2</answer>", "<answer>3</answer>"


async def judged(
    name: str, answers: list[str], *judges: str, args: JsonObject | None = None
) -> tuple[list[Experience], ScriptedEngine]:
    """One experience a run of two, and the judge's engine."""
    judge = ScriptedEngine(list(judges))
    inputs = TaskInputs(
        workflow=WORKFLOWS.get(name),
        task=task_of(ROW, workflow_args=args or {}),
        reward=None,
        num_runs=2,
    )
    auxiliary = [scripted_model(judge, auxiliary_name="judge")] if judges else []
    runs = HostedRuns(
        inputs=inputs,
        model=scripted_model(ScriptedEngine(answers)),
        auxiliary_models=auxiliary,
        runs=(0, 1),
        idle=IdleWorkflows(),
    )
    made = await asyncio.to_thread(runs.make)
    return [one for run in (0, 1) for one in made[run]], judge


@pytest.mark.parametrize("name", ["math_ruler_workflow", "async_math_ruler_workflow"])
async def test_the_judges_scores_are_the_rewards(name: str) -> None:
    made, judge = await judged(name, [WRONG, RIGHT], "The second. <scores>0.25, 1.5</scores>")
    assert [one.reward for one in made] == [0.25, 1.0]
    assert [one.metrics["judge_success"] for one in made] == [1.0, 1.0]
    assert made[1].metrics["gold_reward"] > made[0].metrics["gold_reward"]
    assert len(judge.prompts) == 1, "one judgement for the whole group"
    assert f"Answer 1:\n{WRONG}\n" in judge.prompts[0] and "Question:\n1+1=" in judge.prompts[0]


@pytest.mark.parametrize("says", ["no idea", "<scores>1</scores>", "<scores>a, b</scores>"])
async def test_a_judge_without_scores_rewards_nothing_and_is_counted(says: str) -> None:
    made, _ = await judged("math_ruler_workflow", [WRONG, RIGHT], says)
    assert [one.reward for one in made] == [0.0, 0.0]
    assert [one.metrics["judge_success"] for one in made] == [0.0, 0.0]


async def test_a_judge_is_needed() -> None:
    with pytest.raises(UserError, match="needs another model as the judge"):
        await judged("math_ruler_workflow", [WRONG, RIGHT])


async def test_the_policy_judges_its_own_answers() -> None:
    answers = [WRONG, RIGHT, "<scores>0, 0.5</scores>"]
    name = "math_trainable_ruler_workflow"
    made, _ = await judged(name, answers, args={"judge_share": 0.0})
    assert [one.reward for one in made] == [0.0, 0.5]
    assert [one.response_text for one in made] == [WRONG, RIGHT]


async def test_the_policy_learns_to_judge_as_well() -> None:
    answers = [WRONG, RIGHT, "<scores>0, 1</scores>", "<scores>1, 0</scores>"]
    name = "math_trainable_ruler_workflow"
    made, _ = await judged(name, answers, args={"judge_share": 1.0})
    assert [one.response_text for one in made] == answers[2:]
    assert made[0].reward is not None and made[1].reward is not None
    assert made[0].reward > 0.9 > 0.1 > made[1].reward


def test_scores_are_the_last_ones() -> None:
    assert parse_scores("<scores>0, 0</scores> or <scores>1, 0.5</scores>", 2) == [1.0, 0.5]
    assert parse_scores("<scores>nan, 0.5</scores>", 2) is None
