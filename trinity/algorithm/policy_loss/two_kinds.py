"""Shared by MIX and CHORD: one loss for rollouts, another for an expert's rows among them."""

import torch

from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss


def mixed(
    inputs: PolicyInputs,
    usual: PolicyLoss,
    expert: PolicyLoss,
    *,
    mu: float,
    expert_agg_mode: LossAggMode,
) -> PolicyLoss:
    """(1 - mu) times the usual loss or mu times the expert's, by the row's kind."""
    assert usual.loss_BT is not None and expert.loss_BT is not None
    loss_BT = (1 - mu) * usual.loss_BT
    if inputs.is_expert_B is not None:
        loss_BT = torch.where(inputs.is_expert_B[:, None], mu * expert.loss_BT, loss_BT)
    metrics = {f"usual/{name}": values for name, values in _figures(usual).items()}
    metrics |= {f"expert/{name}": values for name, values in _figures(expert).items()}
    return PolicyLoss(
        name="mix_loss", loss_BT=loss_BT, expert_agg_mode=expert_agg_mode, metrics=metrics
    )


def _figures(loss: PolicyLoss) -> dict[str, torch.Tensor]:
    """Returns the loss and its metrics, as means over tokens."""
    assert loss.loss_BT is not None
    return {loss.name: loss.loss_BT, **loss.metrics}
