"""Columns of a task that are not there, are null, or are no text."""

import pytest

from tests.unit.workflows.scripted import play, task_of
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, RewardFn
from trinity.types import JsonObject, JsonValue

QUESTION = {"question": "1+1?"}
COMPARING = (
    "accuracy_reward",
    "countdown_reward",
    "exact_match_reward",
    "math_boxed_reward",
    "math_dapo_reward",
    "math_reward",
)


def named(name: str) -> BoundReward:
    return BoundReward(REWARDS.get(name), {}, name)


@pytest.mark.parametrize("name", COMPARING)
async def test_a_reward_that_compares_is_not_given_a_truth_that_is_not_there(name: str) -> None:
    said = r"'rows', row 4 .*: there is no column 'answer'; its columns are question, solution; set"
    with pytest.raises(UserError, match=rf"{said} `format\.response_key`"):
        row: JsonObject = {**QUESTION, "solution": "2"}
        await play("simple_workflow", row, ["None"], index=4, reward=named(name))


async def test_a_reward_that_compares_is_not_given_a_null() -> None:
    said = (
        r"'rows', row 4 .*: column 'answer' is null.*question, answer.*set `format\.response_key`"
    )
    with pytest.raises(UserError, match=said):
        row: JsonObject = {**QUESTION, "answer": None}
        await play("math_workflow", row, ["None"], index=4)


async def test_an_evaluation_is_not_graded_by_a_null() -> None:
    with pytest.raises(UserError, match="column 'answer' is null"):
        await play("math_eval_workflow", {**QUESTION, "answer": None}, ["None"], is_eval=True)


def length(response: str) -> float:
    return len(response)


def unless_known(truth: str | None = None) -> float:
    return float(truth is None)


def all_there_is(**known: object) -> float:
    return float(known["truth"] is None)


class OwnColumn(RewardFn):
    def __call__(self, *, response: str, task: JsonObject) -> dict[str, float]:
        return {"right": float(response == task["solution"])}


@pytest.mark.parametrize("source", [length, unless_known, all_there_is, OwnColumn])
async def test_a_reward_that_needs_no_truth_goes_without(source: type[RewardFn]) -> None:
    row: JsonObject = {**QUESTION, "solution": "2"}
    found = await play("simple_workflow", row, ["2"], reward=BoundReward(source, {}, "own"))
    assert found.experiences[0].reward == 1.0


async def test_tasks_that_are_said_to_have_no_truth_go_without() -> None:
    columns = FormatConfig(prompt_key="question", response_key="")
    reward = named("exact_match_reward")
    found = await play("simple_workflow", {**QUESTION}, ["2"], reward=reward, columns=columns)
    assert found.experiences[0].reward == 0.0


async def test_a_truth_that_is_false_or_empty_is_there() -> None:
    for truth in ("", 0, False):
        row: JsonObject = {**QUESTION, "answer": truth}
        reward = named("exact_match_reward")
        found = await play("simple_workflow", row, [str(truth)], reward=reward)
        assert found.experiences[0].reward == 1.0


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        ("q", r"set `format\.prompt_key`"),
        ("rules", r"set `format\.system_prompt_key`"),
        ("a", r"set `format\.response_key`"),
        ("tools", "add it to the rows"),
    ],
)
def test_a_column_that_is_not_there_says_what_names_it(column: str, remedy: str) -> None:
    form = FormatConfig(prompt_key="q", response_key="a", system_prompt_key="rules")
    task = task_of({"other": 1}, columns=form)
    with pytest.raises(UserError, match=f"no column '{column}'; its columns are other; {remedy}"):
        task.column(column)


SYSTEM = FormatConfig(prompt_key="question", system_prompt_key="rules", system_prompt="be brief")


@pytest.mark.parametrize(
    ("given", "system"), [("be kind", "be kind"), (7, "7"), (None, "be brief"), ("", "be brief")]
)
def test_a_row_without_a_system_prompt_of_its_own_has_the_tasksets(
    given: JsonValue, system: str
) -> None:
    assert task_of({**QUESTION, "rules": given}, columns=SYSTEM).system_prompt == system


@pytest.mark.parametrize(("given", "kind"), [(["a"], "a list"), ({}, "a dict")])
def test_a_system_prompt_that_is_no_text_is_refused(given: JsonValue, kind: str) -> None:
    task = task_of({**QUESTION, "rules": given}, columns=SYSTEM, index=7)
    with pytest.raises(
        UserError, match=rf"'rows', row 7 \(from 0\): column 'rules' is {kind}, no text"
    ):
        _ = task.system_prompt


class ShortAnswer(RewardFn):
    """The reward of the guide's first page."""

    def __call__(self, *, response: str, truth: str) -> dict[str, float]:
        return {"right": float(response.strip() == truth), "short": 0.1 * (len(response) < 20)}


def of_prompt(response: str, prompt: str, task: dict[str, JsonValue]) -> float:
    return float((response, prompt, task["answer"]) == ("2", "1+1=", "2"))


async def test_a_reward_takes_from_its_task_what_a_workflow_does_not_give() -> None:
    row: JsonObject = {"question": "1+1=", "answer": "2"}
    own = task_of(row, reward=BoundReward(ShortAnswer, {}, "own")).reward
    assert own is not None
    assert await own.score(response="2") == own(response="2") == {"right": 1.0, "short": 0.1}
    assert (await own.score(response="2", truth="3"))["right"] == 0.0, "what is given comes first"
    prompted = task_of(row, reward=BoundReward(of_prompt, {}, "of_prompt")).reward
    assert prompted is not None
    assert await prompted.score(response="2") == {"of_prompt": 1.0}
    lacks = task_of({"question": "1+1="}, reward=BoundReward(ShortAnswer, {}, "own")).reward
    assert lacks is not None
    with pytest.raises(UserError, match="there is no column 'answer'"):
        await lacks.score(response="2")
