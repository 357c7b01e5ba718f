"""Rewards that a row's data set chooses, and dicts of rewards by veRL's rule."""

import pytest

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, RewardFn
from trinity.types import JsonValue
from trinity.user_code.columns import REWARD_BY_SOURCE, row_reward


def accuracy(source: str, response: str, truth: JsonValue) -> float:
    name = row_reward(source)
    reward = BoundReward(REWARDS.get(name), {}, name)
    return reward(response=response, truth=truth, response_length=5)["accuracy"]


@pytest.mark.parametrize(
    ("source", "right", "wrong", "truth"),
    [
        ("openai/gsm8k", "so #### 1,072", "so 1072", "1072"),
        ("openai/gsm8k", "#### 1 and #### -3", "#### -3 and #### 1", "-3"),
        ("lighteval/MATH", r"\boxed{\frac12}", "0.5", "1/2"),
        ("HuggingFaceH4/MATH-500", r"\boxed{7}", r"\boxed{8}", "7"),
        ("searchR1_nq", "<answer>The Beatles!</answer>", "The Beatles", {"target": ["beatles"]}),
        ("searchR1_musique", "<answer>b</answer>", "<answer>c</answer>", ["x", "B"]),
    ],
)
def test_a_data_set_has_its_scorer(source: str, right: str, wrong: str, truth: JsonValue) -> None:
    assert (accuracy(source, right, truth), accuracy(source, wrong, truth)) == (1.0, 0.0)


@pytest.mark.parametrize("source", ["math_dapo", "aime2024", "aime_2025_i"])
def test_rows_of_dapo_and_aime_gain_or_lose_one(source: str) -> None:
    assert accuracy(source, "Answer: 5", "5") == 1.0
    assert accuracy(source, "Answer: 6", "5") == -1.0


def test_an_answer_far_from_the_end_of_a_response_is_none() -> None:
    assert accuracy("openai/gsm8k", "#### 5" + " " * 290, "5") == 1.0
    assert accuracy("openai/gsm8k", "#### 5" + " " * 300, "5") == 0.0


def test_geometry_counts_the_answer_for_nine_tenths_and_its_form_for_one() -> None:
    reward = BoundReward(REWARDS.get(row_reward("hiyouga/geometry3k")), {}, "geo3k_reward")
    thought = r"<think>a sketch</think> \boxed{\frac{1}{2}}"
    shares = {
        thought: (0.9, 0.1),
        r"it is \boxed{0.5}": (0.9, 0.0),
        r"<think>x</think> \boxed{3}": (0.0, 0.1),
        "0.5": (0.0, 0.0),
    }
    for response, share in shares.items():
        numbers = reward(response=response, truth="0.5")
        assert (numbers["accuracy"], numbers["format_score"]) == share


def test_a_data_set_without_a_scorer_says_why() -> None:
    with pytest.raises(UserError, match=r"no reward for rows of 'taco'.*programs"):
        row_reward("taco")


def test_a_registered_name_and_any_other_stay_as_they_are() -> None:
    assert row_reward("accuracy_reward") == "accuracy_reward"
    assert row_reward("my_module.Reward") == "my_module.Reward"


def test_every_reward_of_a_data_set_exists() -> None:
    for name in set(REWARD_BY_SOURCE.values()):
        REWARDS.get(name)


def verl_score(solution_str: str) -> dict[str, float | str | bool]:
    return {"score": -1, "acc": True, "pred": solution_str}


def parts_alone() -> dict[str, float]:
    return {"accuracy": 1.0, "format": 0.5}


def test_a_score_is_the_reward_and_numbers_beside_it_are_metrics() -> None:
    reward = BoundReward(verl_score, {}, "verl_score")  # type: ignore[arg-type]
    numbers = reward(solution_str="5", truth="5")
    assert numbers == {"score": -1.0, "acc": 1.0}
    assert reward.parts_of(numbers) == {"score": -1.0}


def test_without_a_score_the_sum_of_all_parts_is_the_reward() -> None:
    reward = BoundReward(parts_alone, {}, "parts_alone")
    assert reward.parts_of(reward()) == {"accuracy": 1.0, "format": 0.5}


class OfTrinityRft(RewardFn):
    def __call__(self, response: str, **kwargs: object) -> dict[str, float]:
        return {"score": 1.0, "format": 0.5}


def test_a_class_of_trinity_rft_gives_the_sum_of_all_parts_with_a_score_among_them() -> None:
    reward = BoundReward(OfTrinityRft, {}, "of_trinity_rft")
    assert reward.parts_of(reward(response="5")) == {"score": 1.0, "format": 0.5}


def test_a_text_is_no_part_of_a_sum() -> None:
    def bad() -> dict[str, str]:
        return {"pred": "5"}

    with pytest.raises(TypeError, match="'5' as 'pred', which is no number"):
        BoundReward(bad, {}, "bad")()  # type: ignore[arg-type]
