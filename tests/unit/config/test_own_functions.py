"""Advantages and losses that users bring are found, and looked at before anything starts."""

import itertools
from pathlib import Path

import pytest

from tests.unit.config.builders import GRPO, stage
from trinity.algorithm.algorithm_type import AlgorithmType, Part
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.errors import UserError
from trinity.plugins import PLUGIN_DIRS_VARIABLE
from trinity.types import JsonValue

SOURCE = """
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.algorithm_type import AlgorithmType
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenAdvantages, TokenBatch
from trinity.algorithm.types import ALGORITHM_TYPES


@ADVANTAGES.register_module("{name}_group")
def group(samples: Samples, *, scale: float = 1.0) -> Advantages:
    return Advantages(scale * samples.rewards)


@TOKEN_ADVANTAGES.register_module("{name}_token")
def token(batch: TokenBatch, *, gamma: float) -> TokenAdvantages:
    return TokenAdvantages(advantages_BT=gamma * batch.rewards_BT)


@POLICY_LOSSES.register_module("{name}_loss")
def loss(inputs: "PolicyInputs", *, pull: float = 0.5) -> "PolicyLoss":
    raise AssertionError("is not called")


ALGORITHM_TYPES.register(
    "{name}",
    AlgorithmType(
        name="{name}",
        summary="Mine.",
        when_to_use="Now.",
        paper="",
        repeat_times=5,
        min_repeat_times=2,
        needs_critic=True,
        advantage_fn="{name}_token",
        policy_loss_fn="{name}_loss",
        args={{"advantage_fn": {{"gamma": 0.5}}}},
    ),
)


def silent(samples: "trinity.algorithm.advantage.samples.Samples"):
    return None


def bare(rewards, *, scale=1.0):
    return rewards


def of_rewards(rewards: list[float], epsilon: float = 1e-6) -> list[float]:
    return rewards


def of_nothing() -> Advantages:
    raise AssertionError("is not called")


def gives_something_else(samples: Samples) -> list[float]:
    return []


NUMBER = 7
"""

_NUMBERS = itertools.count()


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module that Python finds, and of what it registers."""
    name = f"own_functions_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(SOURCE.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def plugged_in(mine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same, and its folder is a plugin folder."""
    monkeypatch.setenv(PLUGIN_DIRS_VARIABLE, str(tmp_path))
    return mine


def planned(**algorithm: object) -> ResolvedAlgorithm:
    return stage(GRPO, algorithm=algorithm).algorithm


def refusal(**algorithm: object) -> str:
    with pytest.raises(UserError) as caught:
        planned(**algorithm)
    assert str(caught.value).startswith("stage `main`: ")
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_dotted_path_leads_to_an_advantage_of_either_kind(mine: str) -> None:
    group = planned(advantage_fn=f"{mine}.group", advantage_fn_args={"scale": 2})
    assert (group.advantage_fn, group.advantage_fn_args) == (f"{mine}.group", {"scale": 2})
    assert not group.advantage_in_trainer
    token = planned(advantage_fn=f"{mine}.token", advantage_fn_args={"gamma": 0.5})
    assert token.advantage_in_trainer
    assert not planned(advantage_fn=f"{mine}.silent").advantage_in_trainer


def test_plugins_are_found_by_name(plugged_in: str) -> None:
    own = planned(
        advantage_fn=f"{plugged_in}_token",
        advantage_fn_args={"gamma": 1.0},
        policy_loss_fn=f"{plugged_in}_loss",
    )
    assert own.advantage_in_trainer
    assert not own.needs_critic
    assert not planned(advantage_fn=f"{plugged_in}_group").advantage_in_trainer


def test_an_algorithm_type_of_ones_own_runs_by_its_name(plugged_in: str) -> None:
    own = stage({**GRPO, "algorithm": {"algorithm_type": plugged_in, "repeat_times": 5}})
    assert own.algorithm.repeat_times == 5
    assert own.algorithm.advantage_fn_args == {"gamma": 0.5}
    assert own.needs_critic


def test_a_type_that_needs_comparisons_says_how_many(plugged_in: str) -> None:
    said = refusal(algorithm_type=plugged_in, repeat_times=1)
    assert "with `algorithm.repeat_times: 1` there are none: give 2 or more" in said


def test_a_type_is_a_declaration_and_its_arguments_are_checked_too() -> None:
    name = f"own_type_{next(_NUMBERS)}"
    ALGORITHM_TYPES.register(name, "grpo")  # type: ignore[arg-type]
    assert "is registered as str" in refusal(algorithm_type=name)
    name = f"own_type_{next(_NUMBERS)}"
    args: dict[Part, dict[str, JsonValue]] = {"policy_loss_fn": {"clip_rang": 0.1}}
    own = AlgorithmType(name=name, summary="", when_to_use="", paper="", args=args)
    ALGORITHM_TYPES.register(name, own)
    assert "did you mean `clip_range`?" in refusal(algorithm_type=name)


@pytest.mark.parametrize("function", ["of_rewards", "of_nothing", "gives_something_else", "bare"])
def test_a_wrong_signature_is_refused_with_the_right_ones(mine: str, function: str) -> None:
    said = refusal(advantage_fn=f"{mine}.{function}")
    assert f"`algorithm.advantage_fn: {mine}.{function}` is `def {function}(" in said
    assert "def name(samples: Samples, *, your_argument: float = 1.0) -> Advantages" in said
    assert "def name(batch: TokenBatch, *, your_argument: float = 1.0) -> TokenAdvantages" in said
    assert "trinity.algorithm.token_advantage.token_batch" in said


def test_an_advantage_is_no_loss(mine: str) -> None:
    said = refusal(policy_loss_fn=f"{mine}.group")
    assert "is `def group(Samples, scale) -> Advantages`: write `def name(" in said
    assert "PolicyInputs" in said


def test_what_is_no_function_is_refused(mine: str) -> None:
    assert "is no function" in refusal(advantage_fn=f"{mine}.NUMBER")
    assert "is no function" in refusal(advantage_fn=f"{mine}.Samples")


def test_arguments_of_own_functions_are_checked_as_others_are(mine: str) -> None:
    loss = f"{mine}.loss"
    unknown = refusal(policy_loss_fn=loss, policy_loss_fn_args={"pul": 1.0})
    assert "has no argument `algorithm.policy_loss_fn_args.pul`: did you mean `pull`?" in unknown
    wrong = refusal(policy_loss_fn=loss, policy_loss_fn_args={"pull": "hard"})
    assert "`algorithm.policy_loss_fn_args.pull` must be a number, not 'hard'" in wrong
    lacking = refusal(advantage_fn=f"{mine}.token")
    assert "needs the argument `algorithm.advantage_fn_args.gamma`: give it" in lacking


def test_a_function_that_is_not_there_is_named_with_what_is_close(mine: str) -> None:
    assert "close to it: group" in refusal(advantage_fn=f"{mine}.groupp")
    assert "there is no module 'nowhere_at_all'" in refusal(advantage_fn="nowhere_at_all.fn")


def test_a_file_that_cannot_be_imported_is_named_with_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"broken_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text("import numpy\nno_such_thing\n")
    said = refusal(advantage_fn=f"{name}.fn")
    assert f"{name}.py, line 2: NameError" in said
