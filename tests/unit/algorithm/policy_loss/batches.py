"""Random batches of tokens, and what a loss makes of one: its value and its gradient."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from trinity.algorithm.aggregation import BatchTotals, LossAggMode
from trinity.algorithm.policy_loss.contributions import loss_contribution, metric_contributions
from trinity.algorithm.policy_loss.inputs import PolicyInputs, PolicyLoss

MODES: tuple[LossAggMode, ...] = (
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
)
Age = Literal["fresh", "stale", "extreme"]
"""How far the old policy is: ratios near 1, of versions ago, or anything up to e^60 and e^-60."""
AGES: tuple[Age, ...] = ("fresh", "stale", "extreme")
Loss = Callable[[PolicyInputs], PolicyLoss]


def random_inputs(
    seed: int,
    age: Age = "stale",
    *,
    num_rows: int = 8,
    num_tokens: int = 12,
    dtype: torch.dtype = torch.float64,
    with_experts: bool = False,
) -> PolicyInputs:
    """Rows of all lengths with gaps in their masks, the last but one without any token."""
    draw = np.random.default_rng(seed)
    shape = (num_rows, num_tokens)
    lengths = draw.integers(1, num_tokens + 1, num_rows)
    mask = (np.arange(num_tokens) < lengths[:, None]) & (draw.random(shape) < 0.8)
    mask[:, 0] = True
    if num_rows > 4:
        mask[-2] = False
    logprobs, old = _two_policies(draw, shape, age)
    arrays = {
        "logprobs_BT": logprobs,
        "old_logprobs_BT": old,
        "advantages_BT": draw.normal(size=shape),
        "reference_logprobs_BT": logprobs + 0.5 * draw.normal(size=shape),
    }
    tensors = {
        name: torch.from_numpy(np.where(mask, values, 0.0)).to(dtype)
        for name, values in arrays.items()
    }
    experts = torch.from_numpy(draw.random(num_rows) < 0.4) if with_experts else None
    chosen = torch.from_numpy((draw.random(shape) < 0.3) & mask)
    return PolicyInputs(
        mask_BT=torch.from_numpy(mask), is_expert_B=experts, chosen_BT=chosen, step=3, **tensors
    )


def _two_policies(
    draw: np.random.Generator, shape: tuple[int, int], age: Age
) -> tuple[np.ndarray, np.ndarray]:
    old = -np.exp(draw.normal(size=shape))
    if age == "extreme":
        either = draw.random(shape) < 0.5
        far = draw.uniform(15, 60, shape)
        return np.where(either, old, old - far), np.where(either, old - far, old)
    spread = 0.03 if age == "fresh" else 0.6
    return np.minimum(old + spread * draw.normal(size=shape), -1e-3), old


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a loss makes of a batch."""

    loss: torch.Tensor
    gradient_BT: torch.Tensor
    figures: Mapping[str, float]


def totals_of(inputs: PolicyInputs) -> BatchTotals:
    experts = None if inputs.is_expert_B is None else inputs.is_expert_B.numpy()
    return BatchTotals.from_counts(
        inputs.mask_BT.sum(-1).numpy(),
        max_response_tokens=inputs.mask_BT.shape[1],
        is_expert_B=experts,
    )


def outcome(
    loss: Loss,
    inputs: PolicyInputs,
    mode: LossAggMode = "token-mean",
    totals: BatchTotals | None = None,
    factors_BT: torch.Tensor | None = None,
) -> Outcome:
    """Of `inputs` as they are, or as a part of the batch that `totals` counted."""
    totals = totals or totals_of(inputs)
    logprobs_BT = inputs.logprobs_BT.clone().requires_grad_()
    found = loss(replace(inputs, logprobs_BT=logprobs_BT))
    share = loss_contribution(found, inputs, totals, mode, factors_BT)
    share.backward()
    assert logprobs_BT.grad is not None
    figures = metric_contributions(found, inputs, totals)
    return Outcome(
        share.detach(), logprobs_BT.grad, {name: float(value) for name, value in figures.items()}
    )
