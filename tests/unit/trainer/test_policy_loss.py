"""Losses of tokens: clipping, divergence, and how they become one number."""

import pytest
import torch

from trinity.algorithm.aggregation import BatchTotals, token_weights
from trinity.algorithm.kl.estimators import KL_ESTIMATORS
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.policy_loss.inputs import PolicyInputs
from trinity.algorithm.policy_loss.ppo import ppo
from trinity.algorithm.policy_loss.sft import sft
from trinity.errors import UserError


def one_token(log_ratio: float, advantage: float) -> PolicyInputs:
    return PolicyInputs(
        logprobs_BT=torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True),
        old_logprobs_BT=torch.zeros(1, 1, dtype=torch.float64),
        advantages_BT=torch.tensor([[advantage]], dtype=torch.float64),
        mask_BT=torch.ones(1, 1, dtype=torch.bool),
    )


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
    inputs = one_token(float(torch.log(torch.tensor(ratio, dtype=torch.float64))), advantage)
    assert ppo(inputs).loss_BT.item() == pytest.approx(expected)


def test_ppo_gives_no_gradient_where_it_is_clipped() -> None:
    inputs = one_token(1.0, 1.0)
    ppo(inputs).loss_BT.sum().backward()
    assert inputs.logprobs_BT.grad.item() == 0.0


def test_asymmetric_clipping_uses_both_bounds() -> None:
    high = ppo(one_token(1.0, 1.0), clip_range_low=0.1, clip_range_high=0.4)
    low = ppo(one_token(-1.0, -1.0), clip_range_low=0.1, clip_range_high=0.4)
    assert high.loss_BT.item() == pytest.approx(-1.4)
    assert low.loss_BT.item() == pytest.approx(0.9)


def test_sft_is_the_negative_log_likelihood() -> None:
    assert sft(one_token(-2.0, 0.0)).loss_BT.item() == 2.0


def test_an_unknown_policy_loss_names_the_ones_that_are_close() -> None:
    with pytest.raises(UserError, match="ppo"):
        POLICY_LOSSES.get("pp0")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("k1", 0.5), ("k2", 0.125), ("k3", 0.1065306597), ("low_var_kl", 0.1065306597), ("abs", 0.5)],
)
def test_each_estimator_has_its_value(name: str, expected: float) -> None:
    policy, reference = torch.tensor([[-1.0]]), torch.tensor([[-1.5]])
    assert KL_ESTIMATORS[name](policy, reference).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_a_policy_does_not_diverge_from_itself(name: str) -> None:
    same = torch.tensor([[-0.7, -3.0]])
    assert KL_ESTIMATORS[name](same, same).abs().max().item() == 0.0


def test_low_var_kl_stays_bounded_where_k3_explodes() -> None:
    policy, reference = torch.tensor([[-50.0]]), torch.tensor([[0.0]])
    assert KL_ESTIMATORS["low_var_kl"](policy, reference).item() == 10.0


MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
TOTALS = BatchTotals(num_tokens=4, num_sequences=2, max_response_tokens=10)
VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 16 / 4),
        ("seq-mean-token-sum", (6 + 10) / 2),
        ("seq-mean-token-mean", (2 + 10) / 2),
        ("seq-mean-token-sum-norm", (6 + 10) / 2 / 10),
    ],
)
def test_each_mode_averages_as_its_name_says(mode: str, expected: float) -> None:
    weights = token_weights(MASK, mode, TOTALS, torch.float32)  # type: ignore[arg-type]
    assert (VALUES * weights).sum().item() == pytest.approx(expected)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        token_weights(MASK, "median", TOTALS, torch.float32)  # type: ignore[arg-type]
