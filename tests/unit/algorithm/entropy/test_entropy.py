"""Entropy losses: which rows they look at."""

import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import MODES, random_inputs, totals_of
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.entropy.inputs import EntropyInputs
from trinity.algorithm.policy_loss.contributions import loss_contribution

BATCH = random_inputs(3, with_experts=True)
ENTROPY_BT = torch.rand(BATCH.mask_BT.shape, generator=torch.Generator().manual_seed(1)).double()


def share(
    name: str, mode: LossAggMode, is_expert_B: torch.Tensor | None, **arguments: float
) -> float:
    inputs = EntropyInputs(entropy_BT=ENTROPY_BT, mask_BT=BATCH.mask_BT, is_expert_B=is_expert_B)
    loss = ENTROPY_LOSSES.get(name)(inputs, **arguments)
    return float(loss_contribution(loss, inputs, totals_of(BATCH), mode))


def mean(mode: LossAggMode, rows: torch.Tensor) -> float:
    """Row by row."""
    picked = [ENTROPY_BT[b][BATCH.mask_BT[b]] for b in range(len(rows)) if rows[b]]
    picked = [row for row in picked if len(row)]
    if mode == "token-mean":
        return float(torch.cat(picked).mean())
    if mode == "token-sum":
        return float(torch.cat(picked).sum())
    per_row = [row.mean() if mode == "seq-mean-token-mean" else row.sum() for row in picked]
    longest = BATCH.mask_BT.shape[1] if mode == "seq-mean-token-sum-norm" else 1
    return float(sum(per_row) / len(picked) / longest)


@pytest.mark.parametrize("mode", MODES)
def test_default_is_the_coefficient_times_the_entropy_of_all_rows(mode: LossAggMode) -> None:
    found = share("default", mode, BATCH.is_expert_B, entropy_coef=0.3)
    assert found == pytest.approx(0.3 * mean(mode, torch.ones(8, dtype=torch.bool)))


@pytest.mark.parametrize("mode", MODES)
def test_mix_leaves_expert_rows_out_of_sum_and_count(mode: LossAggMode) -> None:
    assert BATCH.is_expert_B is not None
    found = share("mix", mode, BATCH.is_expert_B, entropy_coef=0.3)
    assert found == pytest.approx(0.3 * mean(mode, ~BATCH.is_expert_B))


def test_none_is_nothing() -> None:
    assert share("none", "token-mean", None) == 0.0


@pytest.mark.parametrize("name", ["default", "mix"])
def test_without_a_coefficient_there_is_no_gradient(name: str) -> None:
    entropy_BT = ENTROPY_BT.clone().requires_grad_()
    inputs = EntropyInputs(
        entropy_BT=entropy_BT, mask_BT=BATCH.mask_BT, is_expert_B=BATCH.is_expert_B
    )
    loss = ENTROPY_LOSSES.get(name)(inputs)
    loss_contribution(loss, inputs, totals_of(BATCH), "token-mean").backward()
    assert entropy_BT.grad is not None and not entropy_BT.grad.any()
