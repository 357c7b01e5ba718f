"""Single tokens, by hand; and what is said to whoever gives arguments that make no sense."""

import math
from functools import partial

import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import Loss, random_inputs
from tests.unit.subtests import as_subtests
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.sapo import sapo
from trinity.algorithm.policy_loss.sft import sft
from trinity.errors import UserError


def one_token(log_ratio: float, advantage: float) -> PolicyInputs:
    return PolicyInputs(
        logprobs_BT=torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True),
        old_logprobs_BT=torch.zeros(1, 1, dtype=torch.float64),
        advantages_BT=torch.tensor([[advantage]], dtype=torch.float64),
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
    )


def value(loss: Loss, inputs: PolicyInputs) -> float:
    loss_BT = loss(inputs).loss_BT
    assert loss_BT is not None
    return float(loss_BT.detach())


def gradient(loss: Loss, inputs: PolicyInputs) -> float:
    loss_BT = loss(inputs).loss_BT
    assert loss_BT is not None
    (found,) = torch.autograd.grad(loss_BT.sum(), inputs.logprobs_BT)
    return float(found)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 1.0, -1.1),  # inside the range
        (1.5, 1.0, -1.2),  # gained enough
        (0.5, 1.0, -0.5),  # worse than before: not clipped
        (0.5, -1.0, 0.8),  # lost enough
        (2.0, -1.0, 2.0),  # worse than before: not clipped
        (9.0, -1.0, 3.0),  # far worse: bounded by c
    ],
)
def test_ppo_clips_only_what_would_go_further(
    ratio: float, advantage: float, expected: float
) -> None:
    assert value(ppo, one_token(math.log(ratio), advantage)) == pytest.approx(expected)


def test_ppo_gives_no_gradient_where_it_is_clipped() -> None:
    assert gradient(ppo, one_token(1.0, 1.0)) == 0.0


@pytest.mark.parametrize(("advantage", "expected"), [(-1.0, 9.0), (0.0, 0.0)])
def test_ppo_with_an_infinite_c_has_no_bound(advantage: float, expected: float) -> None:
    unbounded = partial(ppo, clip_ratio_c=math.inf)
    inputs = one_token(math.log(9.0), advantage)
    assert value(unbounded, inputs) == pytest.approx(expected)
    assert gradient(unbounded, inputs) == pytest.approx(expected)


def test_asymmetric_clipping_uses_both_bounds() -> None:
    bounded = partial(ppo, clip_range_low=0.1, clip_range_high=0.4)
    high = bounded(one_token(1.0, 1.0)).loss_BT
    low = bounded(one_token(-1.0, -1.0)).loss_BT
    assert high is not None and high.item() == pytest.approx(-1.4)
    assert low is not None and low.item() == pytest.approx(0.9)


def test_sapo_is_the_policy_gradient_on_policy_and_fades_away_from_it() -> None:
    at_one, further, far = (gradient(sapo, one_token(x, 1.0)) for x in (0.0, 1.0, 2.0))
    assert at_one == pytest.approx(-1.0)
    assert -1.5 < further < far < 0


def test_sft_is_the_negative_log_likelihood() -> None:
    assert value(sft, one_token(-2.0, 0.0)) == 2.0


def test_an_unknown_policy_loss_names_the_ones_that_are_close() -> None:
    with pytest.raises(UserError, match="ppo"):
        POLICY_LOSSES.get("pp0")


@as_subtests(
    ("name", "arguments", "named"),
    [
        ("ppo", {"clip_ratio_c": 1.0}, "clip_ratio_c"),
        ("sapo", {"tau_pos": 2.0}, "tau_neg"),
        ("sft_phi", {"cutoff_prob": 0.0}, "cutoff_prob"),
        ("dpo", {"label_smoothing": 0.5}, "label_smoothing"),
        ("dro", {"dro_beta": 0.0}, "dro_beta"),
        ("dcpo", {"clip_ratio_c": 1.0}, "clip_ratio_c"),
        ("ipo", {"beta": 0.0}, "beta"),
        ("m2po", {"m2_threshold": 0.0}, "m2_threshold"),
        ("orpo", {"beta": -0.1}, "beta"),
        ("simpo", {"gamma": -1.0}, "gamma"),
        ("rec", {"clip_mode": "three-side"}, "clip_mode"),
        ("rec", {"weight": "heavy"}, "weight"),
        ("rec", {"regularizer": "k9"}, "regularizer"),
    ],
)
def test_arguments_that_make_no_sense_are_named(
    name: str, arguments: dict[str, object], named: str
) -> None:
    with pytest.raises(UserError, match=f"`{named}`"):
        POLICY_LOSSES.get(name)(random_inputs(0), **arguments)
