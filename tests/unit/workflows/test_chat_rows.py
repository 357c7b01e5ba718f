"""Rows as veRL's scripts write them: prompts as messages, and paths into columns."""

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.workflows.scripted import play, task_of
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.types import JsonObject, JsonValue
from trinity.workflows.task import Task

VERL = FormatConfig(prompt_key="prompt", response_key="reward_model.ground_truth")
ASKED: JsonObject = {"role": "user", "content": "1+1? After ####."}
ROW: JsonObject = {
    "data_source": "openai/gsm8k",
    "prompt": [ASKED],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"answer": "1+1 #### 2", "index": 0, "split": "train"},
}


def row_with(*messages: JsonObject, **columns: JsonValue) -> JsonObject:
    return {**ROW, "prompt": list(messages), **columns}


def reward(name: str) -> BoundReward:
    return BoundReward(REWARDS.get(name), {}, name)


def task(row: JsonObject, form: FormatConfig = VERL) -> Task:
    return task_of(row, columns=form)


async def test_a_prompt_of_messages_is_asked_and_scored() -> None:
    played = await play(
        "simple_workflow", ROW, ["#### 2"], columns=VERL, reward=reward("gsm8k_reward")
    )
    assert played.experiences[0].reward == 1.0
    assert "1+1? After ####." in played.engine.prompts[0]
    assert "role" not in played.engine.prompts[0]


async def test_earlier_turns_and_the_system_prompt_of_a_row_stay_as_they_are() -> None:
    row = row_with(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Yes?"},
        ASKED,
    )
    played = await play("math_workflow", row, ["2"], columns=VERL)
    [prompt] = played.engine.prompts
    places = [prompt.index(text) for text in ("Be brief.", "Hello", "Yes?", "1+1?")]
    assert places == sorted(places)
    assert "<think>" not in prompt


async def test_messages_without_a_system_prompt_get_that_of_the_workflow() -> None:
    played = await play("math_workflow", ROW, ["2"], columns=VERL)
    assert "<think>" in played.engine.prompts[0]


def test_a_task_is_described_by_what_the_user_says_last() -> None:
    row = row_with(
        {"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}, ASKED
    )
    assert task(row).question == ASKED["content"]
    assert task({"prompt": "a text"}).question == "a text"


@pytest.mark.parametrize(
    ("path", "truth"),
    [("reward_model.ground_truth", "2"), ("extra_info.answer", "1+1 #### 2"), ("ability", "math")],
)
def test_a_truth_may_be_inside_of_a_column(path: str, truth: str) -> None:
    assert task(ROW, FormatConfig(response_key=path)).truth == truth


@pytest.mark.parametrize(
    ("text", "truth"),
    [('{"ground_truth": "2"}', "2"), ('{"ground_truth"', None), ("[1]", None), ("{} x", None)],
)
def test_a_path_leads_into_the_json_text_of_an_object(text: str, truth: str | None) -> None:
    form = FormatConfig(response_key="reward_model.ground_truth")
    assert task({**ROW, "reward_model": text}, form).truth == truth


def test_a_column_with_a_dot_in_its_name_comes_before_a_path() -> None:
    row: JsonObject = {"a.b": "whole", "a": {"b": "inner"}}
    assert task(row, FormatConfig(response_key="a.b")).truth == "whole"


def test_a_path_that_leads_nowhere_is_named_with_what_is_there() -> None:
    said = r"no column 'reward_model.truth'; its columns are .*reward_model\.ground_truth"
    with pytest.raises(UserError, match=said):
        task(ROW, FormatConfig(response_key="reward_model.truth")).demand_truth()


@pytest.mark.parametrize(
    ("read", "truth"),
    [(117.0, 117), (-0.0, 0), (1.5, 1.5), ("117.0", "117.0"), (1e300, 1e300), (True, True)],
)
def test_a_whole_number_of_a_float_column_is_an_integer(read: JsonValue, truth: JsonValue) -> None:
    found = task({"response": read}, FormatConfig()).truth
    assert (found, str(found)) == (truth, str(truth))


async def test_a_truth_of_117_0_equals_the_text_117() -> None:
    row: JsonObject = {"question": "39*3?", "answer": 117.0}
    for answer, expected in (("117", 1.0), ("118", 0.0)):
        played = await play("simple_workflow", row, [answer], reward=reward("exact_match_reward"))
        assert played.experiences[0].reward == expected


def test_tools_of_a_prompt_of_messages_lose_their_nulls() -> None:
    tool: JsonObject = {"type": "function", "function": {"parameters": {"a": {}, "b": None}}}
    found = task(row_with(ASKED, tools=[tool])).tools
    assert found == [{"type": "function", "function": {"parameters": {"a": {}}}}]
    assert task({"prompt": "text", "tools": [tool]}).tools == []


def test_a_content_of_text_parts_is_one_text() -> None:
    parts: JsonValue = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    [message] = task(row_with({"role": "user", "content": parts})).prompt_messages
    assert message == {"role": "user", "content": "1+1?"}


def test_messages_of_sharegpt_are_messages() -> None:
    turns: list[JsonObject] = [
        {"from": "system", "value": "Be brief."},
        {"from": "human", "value": "1+1?"},
        {"from": "gpt", "value": "2"},
        {"from": "human", "value": "2+2?", "weight": None},
    ]
    found = task(row_with(*turns)).prompt_messages
    assert [(one["role"], one["content"]) for one in found] == [
        ("system", "Be brief."),
        ("user", "1+1?"),
        ("assistant", "2"),
        ("user", "2+2?"),
    ]


@pytest.mark.parametrize(
    ("prompt", "num"),
    [
        ('[{"role": "user", "content": "1+1?"}]', 1),
        (' [{"role": "system", "content": "x"}, {"role": "user", "content": "1+1?"}]', 2),
        ("[1, 2] has how many elements?", 0),
        ('[{"role": "user", "content": "1+1?"}] is what?', 0),
        ('["role"]', 0),
        ("[]", 0),
    ],
)
def test_the_json_text_of_messages_is_messages_and_other_texts_are_texts(
    prompt: str, num: int
) -> None:
    found = task({"prompt": prompt})
    assert len(found.prompt_messages) == num
    assert found.question == ("1+1?" if num else prompt)


PICTURE: JsonValue = [{"type": "image", "image": "a.png"}, {"type": "text", "text": "What?"}]


@as_subtests(
    ("row", "said"),
    [
        (row_with({"role": "user", "content": PICTURE}), r"has an image: set `format\.image_key`"),
        (row_with({"role": "user", "content": "<image>What?"}, images=["x"]), "column 'images'"),
        ({"prompt": "<video> What?", "videos": ["x"]}, "column 'videos'"),
        (row_with({"content": "no role"}), "message 0 has no `role`"),
        (row_with({"from": "tool", "value": "4"}), "is from 'tool', none of human, gpt, system"),
        (row_with({"from": "human", "value": None}), "message 0 has no `role`, or neither"),
        (row_with({"role": "user", "content": None}), "message 0 has no `role`, or neither"),
        (row_with(), "column 'prompt': not a list of messages"),
        ({"prompt": ["just a text"]}, "message 0 has no `role`"),
        ({"prompt": {"role": "user"}}, "column 'prompt' is a dict, no text"),
    ],
)
def test_a_prompt_that_cannot_be_asked_says_why(row: JsonObject, said: str) -> None:
    with pytest.raises(UserError, match=said):
        _ = task(row).question


def test_a_mark_of_an_image_without_one_is_a_text() -> None:
    assert task({"prompt": "the tag <image> in HTML", "images": []}).question.startswith("the tag")


async def test_a_function_of_verl_gets_what_it_names() -> None:
    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: dict[str, object]
    ) -> dict[str, float]:
        assert (data_source, extra_info["split"]) == ("openai/gsm8k", "train")
        return {"score": float(solution_str == ground_truth), "acc": 0.25}

    score = BoundReward(compute_score, {}, "compute_score")
    [experience] = (
        await play("simple_workflow", ROW, ["2"], columns=VERL, reward=score)
    ).experiences
    assert (experience.reward, experience.reward_parts) == (1.0, {"score": 1.0})
    assert experience.metrics["acc"] == 0.25
