"""How losses of tokens and rows become the batch's loss and figures."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import MODES, outcome, random_inputs
from tests.unit.algorithm.policy_loss.verl_losses import core_algos
from trinity.algorithm.aggregation import BatchTotals, LossAggMode, token_weights
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss
from trinity.algorithm.policy_loss.ppo import ppo

MASK = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
TOTALS = BatchTotals(num_tokens=4, num_sequences=2, max_response_tokens=10)
VALUES = torch.tensor([[1.0, 2.0, 3.0], [10.0, 99.0, 99.0], [99.0, 99.0, 99.0]])


class Rows:
    """Three rows of 3, 1 and no tokens; the second may be an expert's."""

    mask_BT = MASK

    def __init__(self, with_expert: bool = False) -> None:
        self.is_expert_B = torch.tensor([False, True, False]) if with_expert else None


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 16 / 4),
        ("token-sum", 16.0),
        ("seq-mean-token-sum", (6 + 10) / 2),
        ("seq-mean-token-mean", (2 + 10) / 2),
        ("seq-mean-token-sum-norm", (6 + 10) / 2 / 10),
    ],
)
def test_each_mode_averages_as_its_name_says(mode: LossAggMode, expected: float) -> None:
    loss = PolicyLoss(name="loss", loss_BT=VALUES)
    assert loss_contribution(loss, Rows(), TOTALS, mode).item() == pytest.approx(expected)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        token_weights(MASK, "median", TOTALS, torch.float32)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_is_verls(mode: LossAggMode) -> None:
    theirs = core_algos().agg_loss(
        VALUES.double(), MASK.double(), mode, loss_scale_factor=TOTALS.max_response_tokens
    )
    ours = loss_contribution(PolicyLoss(name="loss", loss_BT=VALUES.double()), Rows(), TOTALS, mode)
    assert ours.item() == pytest.approx(theirs.item(), rel=2e-8)


def test_the_losss_own_mode_goes_before_the_users() -> None:
    loss = PolicyLoss(name="loss", loss_BT=VALUES, agg_mode="seq-mean-token-sum")
    assert loss_contribution(loss, Rows(), TOTALS, "token-mean").item() == 8.0


def test_expert_rows_are_averaged_among_themselves_where_the_loss_says_so() -> None:
    totals = replace(TOTALS, num_expert_tokens=1, num_expert_sequences=1)
    loss = PolicyLoss(name="loss", loss_BT=VALUES, expert_agg_mode="seq-mean-token-sum-norm")
    share = loss_contribution(loss, Rows(with_expert=True), totals, "token-mean")
    assert share.item() == pytest.approx((1 + 2 + 3) / 3 + 10 / 10)


def test_a_rows_loss_is_averaged_over_rows_that_have_tokens() -> None:
    loss = PolicyLoss(name="loss", loss_B=torch.tensor([1.0, 4.0, 99.0]))
    assert loss_contribution(loss, Rows(), TOTALS, "token-mean").item() == 2.5


def test_factors_multiply_tokens_and_their_geometric_mean_rows() -> None:
    factors_BT = torch.tensor([[1.0, 2.0, 4.0], [0.5, 7.0, 7.0], [7.0, 7.0, 7.0]])
    tokens = PolicyLoss(name="loss", loss_BT=VALUES)
    share = loss_contribution(tokens, Rows(), TOTALS, "token-mean", factors_BT)
    assert share.item() == pytest.approx((1 + 2 * 2 + 3 * 4 + 10 * 0.5) / 4)
    rows = PolicyLoss(name="loss", loss_B=torch.tensor([3.0, 4.0, 99.0]))
    share = loss_contribution(rows, Rows(), TOTALS, "token-mean", factors_BT)
    assert share.item() == pytest.approx((3 * 2 + 4 * 0.5) / 2)


def test_a_row_of_weight_zero_is_silent_also_where_its_loss_is_the_rows() -> None:
    loss = PolicyLoss(name="loss", loss_B=torch.tensor([3.0, 4.0, 99.0], requires_grad=True))
    factors_B1 = torch.tensor([[0.0], [1.0], [1.0]])
    share = loss_contribution(loss, Rows(), TOTALS, "token-mean", factors_B1)
    assert share.item() == 2.0


def test_figures_are_means_over_tokens_or_rows_of_their_kind() -> None:
    totals = replace(TOTALS, num_expert_tokens=1, num_expert_sequences=1)
    of_rows_B = torch.tensor([1.0, 5.0, 99.0])
    names = ("all", "usual/its", "expert/its")
    by_token = PolicyLoss(name="loss", loss_BT=VALUES, metrics=dict.fromkeys(names, VALUES))
    by_row = replace(by_token, metrics=dict.fromkeys(names, of_rows_B))
    found = metric_contributions(by_token, Rows(with_expert=True), totals)
    assert [found[name].item() for name in names] == [4.0, 2.0, 10.0]
    found = metric_contributions(by_row, Rows(with_expert=True), totals)
    assert [found[name].item() for name in names] == [3.0, 1.0, 5.0]


def test_a_loss_that_is_infinite_where_nothing_is_trained_does_no_harm() -> None:
    def entropy_like(inputs: PolicyInputs) -> PolicyLoss:
        others_BT = (1 - inputs.logprobs_BT.exp()).log()  # log 0 where the mask is false
        return PolicyLoss(name="loss", loss_BT=others_BT, metrics={"others": others_BT})

    inputs = random_inputs(1)
    raw_BT = inputs.logprobs_BT.clone().requires_grad_()
    visible = replace(inputs, logprobs_BT=torch.where(inputs.mask_BT, raw_BT, 0.0))
    totals = BatchTotals.from_counts(inputs.mask_BT.sum(-1).numpy(), max_response_tokens=12)
    loss = entropy_like(visible)
    loss_contribution(loss, inputs, totals, "token-mean").backward()
    assert raw_BT.grad is not None and torch.isfinite(raw_BT.grad).all()
    assert torch.isfinite(metric_contributions(loss, inputs, totals)["others"])


def test_totals_count_tokens_and_rows_of_both_kinds() -> None:
    totals = BatchTotals.from_counts(
        np.array([3, 0, 5, 2]),
        max_response_tokens=9,
        is_expert_B=np.array([False, False, True, True]),
    )
    assert totals == BatchTotals(
        num_tokens=10,
        num_sequences=3,
        max_response_tokens=9,
        num_expert_tokens=7,
        num_expert_sequences=2,
    )
    assert (totals.non_expert.num_tokens, totals.non_expert.num_sequences) == (3, 1)
    assert (totals.expert.num_tokens, totals.expert.num_sequences) == (7, 2)


def test_rows_without_tokens_change_nothing() -> None:
    inputs = random_inputs(3)
    fewer = replace(
        inputs,
        logprobs_BT=inputs.logprobs_BT[:-2],
        old_logprobs_BT=inputs.old_logprobs_BT[:-2],
        advantages_BT=inputs.advantages_BT[:-2],
        mask_BT=inputs.mask_BT[:-2],
    )
    silent = replace(inputs, mask_BT=inputs.mask_BT.clone())
    silent.mask_BT[-2:] = False
    assert torch.equal(outcome(ppo, silent).loss, outcome(ppo, fewer).loss)
