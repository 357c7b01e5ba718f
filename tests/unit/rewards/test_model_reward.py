"""The reward of a model that scores: which model, which text, which steps, which number."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.workflows.generation import as_score

CHAT = [{"role": "user", "content": "2+2="}]


@dataclass
class Scorer:
    """Gives the length of an answer, or of each step; notes what it was asked."""

    name: str = "rm"
    scores: bool = True
    asked: list[Any] = field(default_factory=list)

    async def rate(self, messages: Sequence[Any], *, label: int) -> float:
        self.asked.append((list(messages), label))
        return float(len(messages[-1]["content"]))

    async def rate_steps(
        self, messages: Sequence[Any], steps: Sequence[str], *, tag: str, label: int
    ) -> list[float]:
        self.asked.append((list(messages), list(steps), tag, label))
        return [float(len(step)) for step in steps]


async def scored(models: Sequence[Any], response: str, **args: Any) -> dict[str, float]:
    reward = BoundReward(REWARDS.get("model_reward"), args, "model_reward", models=models)
    found = await reward.score(response=response, messages=CHAT)
    assert reward.parts_of(found) == {"score": found["score"]}, "the score alone is the reward"
    return found


async def test_the_first_model_that_scores_is_asked_for_the_whole_chat() -> None:
    judge, first, second = Scorer(scores=False), Scorer(), Scorer(name="other")
    models = [judge, first, second]
    assert await scored(models, "four") == {"score": 4.0, "model_score": 4.0}
    answered = [*CHAT, {"role": "assistant", "content": "four"}]
    assert (judge.asked, first.asked, second.asked) == ([], [(answered, -1)], [])
    await scored(models, "four", model="other", label=0)
    await scored(models, "four", model=2, label=0)
    assert second.asked == [(answered, 0)] * 2


async def test_scores_are_scaled_shifted_and_then_clipped() -> None:
    found = await scored([Scorer()], "four", scale=0.5, shift=-1.0)
    assert found == {"score": 1.0, "model_score": 4.0}
    assert (await scored([Scorer()], "four", scale=3.0, clip=[-5, 5]))["score"] == 5
    assert (await scored([Scorer()], "four", scale=-3.0, clip=[-5, 5]))["score"] == -5


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("last", 1.0), ("min", 1.0), ("mean", 2.0), ("product", 6.0), ("sum", 6.0)],
)
async def test_steps_are_cut_and_their_scores_become_one(reduction: str, expected: float) -> None:
    model = Scorer()
    found = await scored([model], "aa\n\nbbb\n\n\n\nc", step_reward=reduction, step_tag="<step>")
    assert found == {"score": expected, "model_score": expected, "model_steps": 3.0}
    assert model.asked == [(CHAT, ["aa", "bbb", "c"], "<step>", -1)]


async def test_an_answer_that_continues_a_message_is_scored_with_it() -> None:
    model = Scorer()
    reward = BoundReward(REWARDS.get("model_reward"), {}, "model_reward", models=[model])
    begun = [*CHAT, {"role": "assistant", "content": "It "}]
    for response in ("It is", "is"):
        await reward.score(response=response, messages=begun)
    assert [asked[0][-1]["content"] for asked in model.asked] == ["It is", "It is"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"step_reward": "most"}, "`step_reward: most` is none of last, min"),
        ({"step_separator": ""}, "`step_separator` is empty"),
        ({"clip": [2, 1]}, "is not the lowest and the highest"),
    ],
)
def test_wrong_arguments_are_named(args: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        BoundReward(REWARDS.get("model_reward"), args, "model_reward")


async def test_without_a_model_that_scores_the_reward_says_so() -> None:
    with pytest.raises(UserError, match="finds no model that scores"):
        await scored([Scorer(scores=False)], "four")


def test_one_label_is_its_logit_and_several_are_probabilities() -> None:
    assert as_score([-3.5], -1) == -3.5
    assert as_score([0.0, 0.0], 1) == 0.5
    assert as_score([1000.0, 0.0], -1) == pytest.approx(0.0)
    with pytest.raises(UserError, match="2 labels, and no label 2"):
        as_score([0.0, 0.0], 2)
