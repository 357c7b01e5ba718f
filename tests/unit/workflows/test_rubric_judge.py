"""Answers that another model grades by the rubric of their row."""

import json
from pathlib import Path

import pytest

from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS
from trinity.types import Experience, JsonObject, JsonValue
from trinity.workflows.rubric_judge_workflow import parse_grade

EXAMPLE = Path(__file__).parents[3] / "examples" / "rubric_judge" / "advice.jsonl"
RUBRIC: JsonObject = {
    "question": "1+1=",
    "rubric": [{"description": "names the sum", "weight": 2}, {"description": "is polite"}],
}


def judge_that(says: str) -> ScriptedEngine:
    """Says the same of every answer."""
    return ScriptedEngine(lambda _: says)


async def judged(
    *judges: ScriptedEngine, row: JsonObject = RUBRIC, longest: int = 4000
) -> Experience:
    task = task_of(row, columns=FormatConfig(prompt_key="question"), taskset="sums")
    kind = WORKFLOWS.get("rubric_judge_workflow")
    policy = scripted_model(judge_that("2"), max_prompt_tokens=longest)
    models = [scripted_model(one, auxiliary_name="judge") for one in judges]
    [experience] = await kind(task=task, model=policy, auxiliary_models=models).run_async()
    return experience


async def test_the_reward_is_a_tenth_of_the_grade_and_the_judge_sees_all_it_needs() -> None:
    judge = judge_that("The sum is named. <grade>7</grade>")
    experience = await judged(judge)
    assert experience.reward == pytest.approx(0.7)
    assert experience.metrics == {"rubric": pytest.approx(0.7), "judge_success": 1.0}
    assert "auxiliary_model" not in experience.info
    [asked] = judge.prompts
    assert "Question:\n1+1=" in asked
    assert f"Answer:\n{experience.response_text}" in asked
    assert "1. (weight 2) names the sum\n2. (weight 1) is polite" in asked


@pytest.mark.parametrize("says", ["no idea", "<grade>11</grade>", "<grade>0</grade>", ""])
async def test_a_judge_that_gives_no_grade_rewards_nothing_and_is_counted(says: str) -> None:
    experience = await judged(judge_that(says))
    assert experience.reward == 0.0
    assert experience.metrics["judge_success"] == 0.0


async def test_a_question_that_was_too_long_is_not_judged() -> None:
    judge = judge_that("<grade>9</grade>")
    experience = await judged(judge, longest=3)
    assert (experience.reward, judge.prompts) == (0.0, [])


async def test_without_a_judge_or_a_rubric_the_sentence_says_what_to_give() -> None:
    with pytest.raises(UserError, match=r"explorer\.auxiliary_models"):
        await judged()
    rubrics: list[JsonValue] = [None, [], "be polite", {"description": "be polite"}]
    for rubric in rubrics:
        with pytest.raises(UserError, match="`rubric`"):
            await judged(judge_that(""), row={"question": "1+1=", "rubric": rubric})


@pytest.mark.parametrize(
    ("judgement", "grade"),
    [
        ("at first <grade>2</grade>, then <grade>11</grade>, at last <grade> 8 </grade>", 8),
        ("<grade>3</grade> or <grade>2</grade>, no: <grade>12</grade>", None),
        ("<grade>1</grade>", 1),
        ("<grade>10</grade>", 10),
    ],
)
def test_the_last_grade_counts(judgement: str, grade: int | None) -> None:
    assert parse_grade(judgement) == grade


async def test_the_first_of_several_models_judges() -> None:
    other = judge_that("<grade>2</grade>")
    experience = await judged(judge_that("<grade>9</grade>"), other)
    assert (experience.reward, other.prompts) == (0.9, [])


@pytest.mark.parametrize("line", EXAMPLE.read_text().splitlines())
async def test_the_rows_of_the_example_are_judged(line: str) -> None:
    experience = await judged(judge_that("<grade>10</grade>"), row=json.loads(line))
    assert experience.reward == 1.0
