"""Mathematics in boxes, and calls of tools."""

import json
from typing import Any

import pytest

from tests.unit.workflows.scripted import play
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.rewards.reward import BoundReward
from trinity.types import JsonObject

ROW: JsonObject = {"question": "1+1?", "answer": "2"}
BOX = "It is \\boxed{2}."


async def test_the_box_is_asked_for_and_graded() -> None:
    found = await play("math_boxed_workflow", ROW, [BOX])
    (sample,) = found.experiences
    assert "\\boxed{}" in found.engine.prompts[0]
    assert sample.reward_parts == {"accuracy": 1.0, "format_score": 0.0}


async def test_missing_thoughts_cost_what_the_taskset_says() -> None:
    args: JsonObject = {"with_think": True, "format_score_coef": 0.5}
    found = await play("async_math_boxed_workflow", ROW, [BOX], workflow_args=args)
    (sample,) = found.experiences
    assert "<think>" in found.engine.prompts[0]
    assert sample.reward == 0.5


async def test_a_base_model_is_given_plain_text() -> None:
    found = await play("math_boxed_workflow", ROW, [BOX], workflow_args={"use_base": True})
    assert found.engine.prompts == [
        "Reason step by step, and put the final answer within \\boxed{}.\n\n"
        "Question: 1+1?\nAnswer: "
    ]
    assert found.experiences[0].reward == 1.0
    own = FormatConfig(prompt_key="question", response_key="answer", system_prompt="Add.")
    args: JsonObject = {"use_base": True}
    found = await play("math_boxed_workflow", ROW, [BOX], workflow_args=args, columns=own)
    assert found.engine.prompts == ["Add.\n\nQuestion: 1+1?\nAnswer: "]


async def test_a_response_that_was_cut_trains_nothing() -> None:
    found = await play("math_boxed_workflow", ROW, [BOX], max_tokens=5)
    (sample,) = found.experiences
    assert not sample.sequence.action_mask.any()
    assert sample.reward == 0.0


async def test_an_evaluation_samples_in_its_own_way() -> None:
    row: JsonObject = {"question": "1+1?", "answer": "so it is \\boxed{2}"}
    found = await play("math_eval_workflow", row, [BOX], is_eval=True)
    (sampling,) = found.engine.samplings
    assert (sampling.temperature, sampling.top_p) == (0.6, 0.8)
    assert found.experiences[0].metrics == {"accuracy": 1.0}
    assert found.engine.prompts[0].startswith("<system>Please reason step by step")


@pytest.mark.parametrize(
    ("row", "form", "answer", "accuracy"),
    [
        ({"answer": "2"}, {}, BOX, 1.0),
        ({"answer": "2"}, {}, "It is 2.", 0.0),
        ({"answer": "3"}, {}, BOX, 0.0),
        ({"sum": "\\boxed{2}", "answer": "3"}, {"response_key": "sum"}, BOX, 1.0),
        ({"answer": "2"}, {"system_prompt": "Add."}, BOX, 1.0),
    ],
)
async def test_an_evaluation_compares_the_box_with_the_truth(
    row: JsonObject, form: dict[str, str], answer: str, accuracy: float
) -> None:
    own = FormatConfig.model_validate({"response_key": "", **form})
    found = await play("math_eval_workflow", {"question": "1+1?", **row}, [answer], columns=own)
    assert found.experiences[0].reward == accuracy
    instructed = "<system>Add." if "system_prompt" in form else "<system>Please reason"
    assert found.engine.prompts[0].startswith(instructed)


async def test_a_reward_model_sees_the_chat_and_the_truth() -> None:
    seen: list[Any] = []

    def judge(response: str, messages: Any, ground_truth: str) -> dict[str, float]:
        seen.extend([response, messages[-1], ground_truth])
        return {"score": 0.75}

    found = await play("math_rm_workflow", ROW, ["two"], reward=BoundReward(judge, {}, "judge"))
    assert found.experiences[0].reward == 0.75
    assert seen == ["two", {"role": "user", "content": "1+1?"}, "2"]
    with pytest.raises(UserError, match="set default_reward_fn_type"):
        await play("math_rm_workflow", ROW, ["two"])


CALLS = [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "now", "arguments": {}}]
TOOLS: JsonObject = {
    "tools": json.dumps([{"name": "add"}, {"name": "now"}]),
    "raw_system": "You are exact.",
    "conversations": [{"from": "human", "value": "add, and tell the time"}],
    "answer": json.dumps(CALLS),
}


def reply(calls: object, thoughts: str = "<think>hm</think>") -> str:
    return f"{thoughts}\n<tool_call>\n{json.dumps(calls)}\n</tool_call>"


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (reply(CALLS), 1.0),
        (reply(CALLS[::-1]), 1.0),
        (reply([{"name": "add", "arguments": {"b": 2, "a": 1}}, CALLS[1]]), 1.0),
        (reply(CALLS[:1]), 0.0),
        (reply([*CALLS, CALLS[0]]), 0.0),
        (reply([{"name": "add", "arguments": {"b": 2, "a": "1"}}, CALLS[1]]), 0.0),
        (reply(CALLS, thoughts=""), 0.0),
        (reply(CALLS, thoughts="<think>a</think><think>b</think>"), 0.0),
        (reply(CALLS) + reply(CALLS), 0.0),
        (reply("add"), 0.0),
        ("<think>hm</think><tool_call>{</tool_call>", 0.0),
    ],
)
async def test_the_very_calls_are_rewarded(answer: str, reward: float) -> None:
    found = await play("tool_call_workflow", TOOLS, [answer])
    assert found.experiences[0].reward == reward
    prompt = found.engine.prompts[0]
    assert prompt.startswith("<system>You are exact.") and '"name": "now"' in prompt
    assert prompt.endswith("<user>add, and tell the time\n<assistant>")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answer": "add(1, 2)"}, "its column `answer` is no JSON"),
        ({"answer": [{"call": "add"}]}, "its column `answer` is no list of calls"),
        ({"conversations": "[]x"}, "its column `conversations` is no JSON"),
        ({"conversations": [{"from": "nobody", "value": ""}]}, "has `from` 'nobody'"),
    ],
)
async def test_a_row_of_tools_that_cannot_be_is_named(changes: JsonObject, said: str) -> None:
    with pytest.raises(UserError, match=rf"taskset 'rows', row 0 \(from 0\): .*{said}"):
        await play("tool_call_workflow", {**TOOLS, **changes}, ["x"])
