"""The critic's loss against verl's, and by hand."""

from dataclasses import replace

import pytest
import torch

from tests.unit.algorithm.policy_loss.batches import MODES, random_inputs, totals_of
from tests.unit.algorithm.policy_loss.verl_losses import core_algos
from tests.unit.subtests import as_subtests
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.value_loss import ValueInputs, value_loss


def random_values(dtype: torch.dtype) -> ValueInputs:
    batch = random_inputs(4, num_rows=16, num_tokens=24, dtype=dtype)
    return ValueInputs(
        values_BT=batch.logprobs_BT.clone().requires_grad_(),
        old_values_BT=batch.old_logprobs_BT,
        returns_BT=batch.advantages_BT,
        mask_BT=batch.mask_BT,
    )


@as_subtests(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)])
@as_subtests("mode", MODES)
def test_loss_gradient_and_figures_are_verls(
    mode: LossAggMode, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = random_values(dtype)
    tolerance = max(tolerance, 2e-8 if mode == "seq-mean-token-mean" else 0)
    totals = totals_of(random_inputs(4, num_rows=16, num_tokens=24))
    theirs, clipped = core_algos().compute_value_loss(
        vpreds=inputs.values_BT,
        returns=inputs.returns_BT,
        values=inputs.old_values_BT,
        response_mask=inputs.mask_BT.to(dtype),
        cliprange_value=0.4,
        loss_agg_mode=mode,
    )
    loss = value_loss(inputs, cliprange_value=0.4)
    ours = loss_contribution(loss, inputs, totals, mode)
    gradients = [torch.autograd.grad(x, inputs.values_BT)[0] for x in (ours, theirs)]
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)
    figures = metric_contributions(loss, inputs, totals)
    assert 0 < figures["vf_clipfrac"].item() == pytest.approx(clipped.item(), rel=1e-6)
    mean = inputs.values_BT[inputs.mask_BT].mean().item()
    assert figures["vpred_mean"].item() == pytest.approx(mean, rel=1e-5)


def test_a_value_that_moved_far_towards_its_target_gets_no_gradient() -> None:
    one = torch.ones(1, 1)
    inputs = ValueInputs(
        values_BT=(0.9 * one).requires_grad_(),
        old_values_BT=0.0 * one,
        returns_BT=one,
        mask_BT=one.bool(),
    )
    loss_BT = value_loss(inputs).loss_BT
    assert loss_BT is not None and loss_BT.item() == pytest.approx(0.5 * (1 - 0.5) ** 2)
    assert not torch.autograd.grad(loss_BT.sum(), inputs.values_BT)[0].any()
    wide_BT = value_loss(replace(inputs), cliprange_value=2.0).loss_BT
    assert wide_BT is not None and torch.autograd.grad(wide_BT.sum(), inputs.values_BT)[0].any()
