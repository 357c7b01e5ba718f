"""Masked statistics and the aggregation of losses, by Trinity-RFT's names, for users' classes.

Shapes: B rows, T tokens; `mask` is 1 or true where a value counts.
"""

from contextvars import ContextVar

import torch

from trinity.errors import UserError

SMALL = 1e-8
AVERAGES_TOKENS: ContextVar[bool] = ContextVar("averages_tokens", default=False)
"""True once a mean over all tokens was taken of values with a gradient: a loss was averaged."""


def aggregate_loss(
    values: torch.Tensor,
    mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    normalizer: float | None = None,
) -> torch.Tensor:
    """Returns one number for the values of all tokens, [B, T], by one of four modes.

    `seq-mean-token-sum-norm` divides the sum by `normalizer`, or by T.
    """
    if loss_agg_mode == "token-mean":
        return masked_mean(values, mask)
    if loss_agg_mode == "seq-mean-token-sum":
        return masked_sum(values, mask, axis=-1).mean()
    if loss_agg_mode == "seq-mean-token-mean":
        return masked_mean(values, mask, axis=-1).mean()
    if loss_agg_mode == "seq-mean-token-sum-norm":
        divisor = mask.shape[-1] if normalizer is None else normalizer
        return masked_sum(values, mask) / (divisor + SMALL)
    raise UserError(
        f"`loss_agg_mode` is {loss_agg_mode!r}: give token-mean, seq-mean-token-sum, "
        "seq-mean-token-mean or seq-mean-token-sum-norm"
    )


def masked_loss(
    values: torch.Tensor, mask: torch.Tensor, loss_agg_mode: str = "token-mean"
) -> torch.Tensor:
    """`aggregate_loss` under its name in Trinity-RFT 0.3."""
    return aggregate_loss(values, mask, loss_agg_mode)


def masked_sum(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Returns the sum of the values that count, of all or along an axis."""
    counted = torch.where(mask.bool(), values, 0.0) * mask
    return counted.sum() if axis is None else counted.sum(dim=axis)


def masked_mean(values: torch.Tensor, mask: torch.Tensor, axis: int | None = None) -> torch.Tensor:
    """Returns the mean of the unmasked values, or 0 without any."""
    counts = mask.sum() if axis is None else mask.sum(dim=axis)
    if axis is None and values.requires_grad:
        AVERAGES_TOKENS.set(True)
    return masked_sum(values, mask, axis) / (counts + SMALL)


def masked_var(values: torch.Tensor, mask: torch.Tensor, unbiased: bool = True) -> torch.Tensor:
    """Returns their variance.

    Raises: ValueError when it is unbiased and fewer than two values count.
    """
    variance = masked_mean((values - masked_mean(values, mask)) ** 2, mask)
    if not unbiased:
        return variance
    count = mask.sum()
    if count < 2:
        raise ValueError(f"an unbiased variance needs two values or more, and {int(count)} count")
    return variance * count / (count - 1)


def masked_whiten(
    values: torch.Tensor, mask: torch.Tensor, shift_mean: bool = True
) -> torch.Tensor:
    """Returns the values in standard deviations from their mean; `shift_mean` false keeps it."""
    mean, variance = masked_mean(values, mask), masked_var(values, mask)
    whitened = (values - mean) * torch.rsqrt(variance + SMALL)
    return whitened if shift_mean else whitened + mean


def prefix_metrics(
    src_metrics: dict[str, float], prefix: str, dst_metrics: dict[str, float] | None = None
) -> dict[str, float]:
    """Returns the metrics as `prefix/name`, added to `dst_metrics` if there are some."""
    metrics = {} if dst_metrics is None else dst_metrics
    metrics.update({f"{prefix}/{name}": value for name, value in src_metrics.items()})
    return metrics
