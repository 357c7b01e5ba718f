"""Tasks and rewards as workflows of Trinity-RFT see them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.subtests import as_subtests
from tests.unit.workflows.test_rft_experience import built
from trinity.plugins import REWARDS
from trinity.rewards.math_reward import MathReward
from trinity.rewards.reward import BoundReward, RewardFn
from trinity.rewards.score import BadReward, as_reward
from trinity.rft.common.config import FormatConfig
from trinity.rft.common.rewards import CLASSES, MathBoxedRewardFn
from trinity.rft.common.workflows import Task
from trinity.rft.common.workflows.workflow import SimpleWorkflow
from trinity.rft.workflows.math import MathBoxedWorkflow, verify_math_answer
from trinity.rft.workflows.workflow import set_reward
from trinity.workflows.hosting import NamedReward, reward_class

ROW: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "1+1="}],
    "reward_model": {"ground_truth": 117.0},
}


class Constant(RewardFn):
    """Takes arguments of its own, and is called by position as a reward model is."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    def __call__(self, response: Any, messages: list[Any], ground_truth: str) -> dict[str, float]:
        return {"seen": self.value * response.prompt_length}


class Inherits(MathBoxedRewardFn):
    """Has no `__call__` of its own."""

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient


def verl_score(response: str, truth: str) -> dict[str, float]:
    return {"score": -1.0, "acc": float(response == truth)}


def task(**form: str) -> Task:
    names: dict[str, Any] = {"response_key": "reward_model.ground_truth", **form}
    return Task(raw_task=ROW, format_args=FormatConfig(**names), reward_fn=Constant)


def test_a_truth_may_be_a_path_and_a_whole_number_is_one() -> None:
    assert repr(task().truth) == "117"
    assert task(response_key="reward_model.nothing").truth is None
    assert task(prompt_key="reward_model.ground_truth").task_desc == 117.0


def test_a_question_of_messages_keeps_them_and_its_own_system_prompt() -> None:
    made: Any = SimpleWorkflow(task=task(), model=None)  # type: ignore[arg-type]
    assert made.format_messages() == ROW["prompt"] and made.is_eval is False
    made.system_prompt, made.reply_prefix = "Be brief.", "It is"
    roles = [message["role"] for message in made.format_messages()]
    assert roles == ["system", "user", "assistant"]
    made.task_desc = [{"role": "system", "content": "own"}, *ROW["prompt"]]
    assert made.format_messages()[0]["content"] == "own"
    made.task_desc = "1+1="
    assert made.format_messages()[1] == {"role": "user", "content": "1+1="}


@pytest.mark.parametrize("source", [Constant, Inherits])
def test_a_reward_of_theirs_is_given_as_it_is(source: type) -> None:
    named = NamedReward(source=source, args={}, name="any")
    assert reward_class(named, {}) is source


def test_a_built_in_name_is_their_class_unless_a_plugin_has_taken_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named = NamedReward(source=MathReward, args={}, name="math_reward")
    assert reward_class(named, {}) is CLASSES["math_reward"]
    monkeypatch.setattr(REWARDS, "is_own", lambda name: name == "math_reward")
    taken = NamedReward(source=Constant, args={}, name="math_reward")
    assert reward_class(taken, {}) is Constant


def test_a_score_of_verls_is_the_reward_and_the_rest_are_metrics() -> None:
    kind: Any = reward_class(NamedReward(source=verl_score, args={}, name="verl"), {})
    parts = kind()(response="5", truth="5")
    assert parts == {"score": -1.0}, "what a workflow adds up"
    answer = built()
    set_reward(answer, parts, 0, verl_score)
    assert (answer.reward, answer.metrics) == (-1.0, {"score": -1.0, "acc": 1.0})


@pytest.mark.parametrize(
    ("said", "truth", "accuracy"),
    [("\\boxed{2}", "2", 1.0), ("\\boxed{2}", "so \\boxed{2}", 1.0), ("2", "2", 0.0)],
)
def test_the_last_box_is_compared_with_the_truth_or_its_box(
    said: str, truth: str, accuracy: float
) -> None:
    given = "2" if accuracy else ""
    compared = {"extracted_answer": given, "ground_truth": "2"}
    assert verify_math_answer(said, truth) == (accuracy, compared)


def test_a_question_of_mathematics_is_asked_as_plain_text_with_instructions() -> None:
    form = FormatConfig(response_key="reward_model.ground_truth")
    usual = Task(raw_task=ROW, format_args=form, workflow_args={})
    made: Any = MathBoxedWorkflow(task=usual, model=None)  # type: ignore[arg-type]
    assert (made.use_base, made.with_think, made.format_score_coef) == (False, False, 0.1)
    made.task_desc = "1+1="
    instructions = "Reason step by step, and put the final answer within \\boxed{}."
    assert made.format_prompt() == f"System:{instructions}\nUser:\n1+1=\nAssistant:\n"
    assert isinstance(made.reward_fn, MathBoxedRewardFn)


def test_control_parts_of_theirs_are_added_up() -> None:
    answer = built()
    set_reward(answer, {"score": 1.0, "format": 0.5}, 3, verl_score)
    place: Any = answer.eid
    assert (answer.reward, place.run) == (1.5, 3)


NO_SCORES: list[Any] = [
    *({"score": None}, None, {"score": float("nan")}, float("nan"), "1.0", {"score": "1.0"}, {}),
    *(float("inf"), [1.0], {"score": [1.0, 2.0]}, {"score": 1j}, {"reward_failed": 1.0}),
]
SCORES: list[Any] = [(1, 1.0), (True, 1.0), (np.float32(0.5), 0.5), ({"score": False}, 0.0)]


class OfTheirs(RewardFn):
    """Returns its argument, as a class of Trinity-RFT's."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self, response: str, **kwargs: Any) -> Any:
        return self._value


def kinds(value: Any) -> dict[str, Callable[[], object]]:
    """Returns ways to score an answer by a reward that returns the value."""

    async def later(**_: object) -> Any:
        return value

    def own(**_: object) -> Any:
        return value

    def hosted() -> object:
        answer = built()
        adapted: Any = reward_class(NamedReward(source=own, args={}, name="own"), {})
        set_reward(answer, adapted()(response="a"), 0, adapted)
        return answer.reward

    def theirs() -> object:
        answer, reward = built(), OfTheirs(value)
        set_reward(answer, reward(response="a"), 0, reward)
        return answer.reward

    def total(reward: BoundReward) -> object:
        return sum(reward.parts_of(reward(response="a")).values())

    return {
        "function": lambda: total(BoundReward(own, {}, "own")),
        "coroutine": lambda: total(BoundReward(later, {}, "later")),
        "class": lambda: total(BoundReward(OfTheirs, {"value": value}, "theirs")),
        "hosted": hosted,
        "theirs": theirs,
    }


@as_subtests("kind", kinds(None))
@as_subtests("value", NO_SCORES)
def test_every_kind_of_reward_that_returns_no_score_fails(value: Any, kind: str) -> None:
    with pytest.raises(BadReward, match=r"the reward (own|later|theirs|OfTheirs) returned"):
        kinds(value)[kind]()


@as_subtests("kind", kinds(None))
@as_subtests(("value", "number"), SCORES)
def test_every_kind_of_reward_may_return_any_number(value: Any, number: float, kind: str) -> None:
    assert kinds(value)[kind]() == number


@pytest.mark.parametrize("value", ["1.0", float("nan"), {"score": 1.0}, [1.0], 1e39], ids=repr)
def test_a_workflow_sets_a_number_or_leaves_the_reward_for_later(value: Any) -> None:
    with pytest.raises(BadReward, match=r"MyWorkflow (gave|returned)"):
        as_reward(value, "MyWorkflow")
    assert as_reward(None, "MyWorkflow") is None
    assert as_reward(np.float32(0.5), "MyWorkflow") == 0.5
