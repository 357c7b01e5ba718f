"""Contributions of a part of an optimizer batch to its loss and metrics: parts add up exactly.

loss = ppo(inputs, clip_range=0.2)
loss_contribution(loss, inputs, totals, "token-mean").backward()
contributions = metric_contributions(loss, inputs, totals)   # they add up to the batch's means
"""

import torch

from trinity.algorithm.aggregation import (
    BatchTotals,
    LossAggMode,
    TrainedRows,
    row_weights,
    token_weights,
    token_weights_by_row_kind,
)
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss, Share

USUAL, EXPERT = "usual/", "expert/"


def loss_contribution(
    loss: PolicyLoss,
    rows: TrainedRows,
    totals: BatchTotals,
    mode: LossAggMode,
    factors_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns the part's share of the batch's loss; the loss may override the user's `mode`.

    `factors_BT` multiply the losses of tokens; the loss of a row is multiplied by their geometric
    mean over the row. A loss of one number has them in its advantages.
    """
    if loss.loss is not None:
        return loss.loss * _share(loss.share, rows, totals)
    if loss.loss_B is not None:
        return _rows_contribution(loss.loss_B, rows, totals, factors_BT)
    assert loss.loss_BT is not None
    weights_BT = _weights(loss, rows, totals, mode)
    if factors_BT is not None:
        weights_BT = weights_BT * factors_BT
    return torch.where(rows.mask_BT, loss.loss_BT * weights_BT, 0.0).sum()


def metric_contributions(
    loss: PolicyLoss, rows: TrainedRows, totals: BatchTotals
) -> dict[str, torch.Tensor]:
    """Returns the part's share of each further metric of the batch, without gradient."""
    with torch.no_grad():
        return {
            name: _metric_contribution(name, values, rows, totals)
            for name, values in loss.metrics.items()
        }


def _share(share: Share, rows: TrainedRows, totals: BatchTotals) -> torch.Tensor:
    """Returns the part of the whole batch that these rows are."""
    if share == "tokens":
        return rows.mask_BT.sum() / max(totals.num_tokens, 1)
    return rows.mask_BT.any(-1).sum() / max(totals.num_sequences, 1)


def _weights(
    loss: PolicyLoss, rows: TrainedRows, totals: BatchTotals, mode: LossAggMode
) -> torch.Tensor:
    assert loss.loss_BT is not None
    mode, dtype = loss.agg_mode or mode, loss.loss_BT.dtype
    if loss.expert_agg_mode is None:
        return token_weights(rows.mask_BT, mode, totals, dtype)
    return token_weights_by_row_kind(rows, mode, loss.expert_agg_mode, totals, dtype)


def _rows_contribution(
    loss_B: torch.Tensor,
    rows: TrainedRows,
    totals: BatchTotals,
    factors_BT: torch.Tensor | None,
) -> torch.Tensor:
    weights_B = row_weights(rows, totals, loss_B.dtype)
    if factors_BT is not None:
        logs_BT = torch.where(rows.mask_BT, factors_BT.log(), 0.0)
        weights_B = weights_B * (logs_BT.sum(-1) / rows.mask_BT.sum(-1).clamp(min=1)).exp()
    return torch.where(rows.mask_BT.any(-1), loss_B * weights_B, 0.0).sum()


def _metric_contribution(
    name: str, values: torch.Tensor, rows: TrainedRows, totals: BatchTotals
) -> torch.Tensor:
    counted_BT, counts = rows.mask_BT, totals
    if name.startswith((USUAL, EXPERT)):
        of_experts = name.startswith(EXPERT)
        counts = totals.expert if of_experts else totals.non_expert
        counted_BT = counted_BT & _is_expert(rows, of_experts)[:, None]
    values = values.detach().double()
    if values.ndim == 1:
        counted_B = counted_BT.any(-1)
        return torch.where(counted_B, values, 0.0).sum() / max(counts.num_sequences, 1)
    return torch.where(counted_BT, values, 0.0).sum() / max(counts.num_tokens, 1)


def _is_expert(rows: TrainedRows, wanted: bool) -> torch.Tensor:
    """Returns [B], true for expert rows, or for the others."""
    if rows.is_expert_B is None:
        return torch.full(rows.mask_BT.shape[:1], not wanted, device=rows.mask_BT.device)
    return rows.is_expert_B == wanted


def mix_losses(
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
    metrics = {f"usual/{name}": values for name, values in _named_losses(usual).items()}
    metrics |= {f"expert/{name}": values for name, values in _named_losses(expert).items()}
    return PolicyLoss(
        name="mix_loss", loss_BT=loss_BT, expert_agg_mode=expert_agg_mode, metrics=metrics
    )


def _named_losses(loss: PolicyLoss) -> dict[str, torch.Tensor]:
    """Returns the loss and its metrics, as means over tokens."""
    assert loss.loss_BT is not None
    return {loss.name: loss.loss_BT, **loss.metrics}
