"""The losses again, slowly: one token after the other, as the formulas are written down.

A row is the list of its trained tokens; a function gives one loss for each of them. Log-
probabilities `lp` are scalars of torch, so that gradients come out of the same loops.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

from trinity.algorithm.policy_loss.inputs import PolicyInputs

Scalar: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True)
class Token:
    lp: Scalar
    old: float
    advantage: float
    reference: float

    @property
    def log_ratio(self) -> Scalar:
        """Constant beyond +-20."""
        difference = self.lp - self.old
        return difference if abs(number(difference)) <= 20 else constant(difference.sign() * 20)

    @property
    def ratio(self) -> Scalar:
        return self.log_ratio.exp()


Row = list[Token]
RowLoss = Callable[..., list[Scalar]]


def constant(value: Scalar) -> Scalar:
    return value.detach()


def number(value: Scalar) -> float:
    return float(value.detach())


def rows_of(inputs: PolicyInputs, logprobs_BT: torch.Tensor) -> list[Row]:
    rows = []
    for b in range(inputs.mask_BT.shape[0]):
        row = []
        for t in range(inputs.mask_BT.shape[1]):
            if not inputs.mask_BT[b, t]:
                continue
            assert inputs.reference_logprobs_BT is not None
            row.append(
                Token(
                    lp=logprobs_BT[b, t],
                    old=number(inputs.old_logprobs_BT[b, t]),
                    advantage=number(inputs.advantages_BT[b, t]),
                    reference=number(inputs.reference_logprobs_BT[b, t]),
                )
            )
        rows.append(row)
    return rows


def aggregate(losses: list[list[Scalar]], mode: str, longest: int) -> Scalar:
    """Of rows that have tokens."""
    rows = [row for row in losses if row]
    total = torch.zeros((), dtype=torch.float64)
    if not rows:
        return total
    for row in rows:
        of_row = sum(row, start=torch.zeros((), dtype=torch.float64))
        if mode == "token-mean":
            total = total + of_row / sum(len(row) for row in rows)
        if mode == "token-sum":
            total = total + of_row
        if mode == "seq-mean-token-sum":
            total = total + of_row / len(rows)
        if mode == "seq-mean-token-mean":
            total = total + of_row / len(row) / len(rows)
        if mode == "seq-mean-token-sum-norm":
            total = total + of_row / longest / len(rows)
    return total


def clip(value: Scalar, low: float, high: float) -> Scalar:
    if number(value) < low:
        return torch.tensor(low, dtype=torch.float64)
    return torch.tensor(high, dtype=torch.float64) if number(value) > high else value


def smaller(left: Scalar, right: Scalar) -> Scalar:
    return left if number(left) <= number(right) else right


def larger(left: Scalar, right: Scalar) -> Scalar:
    return left if number(left) >= number(right) else right


def mean_log_ratio(row: Row) -> Scalar:
    return sum((t.lp - t.old for t in row), start=torch.zeros((), dtype=torch.float64)) / len(row)


def ppo_objective(ratio: Scalar, advantage: float, low: float, high: float, c: float) -> Scalar:
    found = smaller(ratio * advantage, clip(ratio, 1 - low, 1 + high) * advantage)
    bound = torch.tensor(c * advantage, dtype=torch.float64)
    return larger(found, bound) if advantage < 0 else found


def ppo(
    row: Row,
    low: float = 0.2,
    high: float = 0.2,
    c: float = 3.0,
    delta: float | None = None,
    fallback: bool = False,
) -> list[Scalar]:
    far = delta is not None and sum(-number(t.log_ratio) for t in row) / len(row) > delta
    losses = []
    for t in row:
        ratio = (t.lp - constant(t.lp)).exp() if fallback else t.ratio
        loss = -ppo_objective(ratio, t.advantage, low, high, c)
        losses.append(0 * loss if far and t.advantage < 0 else loss)
    return losses


def gspo(row: Row, low: float, high: float) -> list[Scalar]:
    ratio = mean_log_ratio(row)
    ratio = ratio.exp() if number(ratio) <= 10 else torch.tensor(math.e**10, dtype=torch.float64)
    advantage = sum(t.advantage for t in row) / len(row)
    return [-ppo_objective(ratio, advantage, low, high, math.inf) for _ in row]


def cispo(
    row: Row, low: float, high: float, masks: tuple[float, float] | None = None
) -> list[Scalar]:
    losses = []
    for t in row:
        loss = -t.advantage * constant(clip(t.ratio, 1 - low, 1 + high)) * t.lp
        if masks is not None:
            gone = number(t.ratio) > 1 + masks[1] and t.advantage > 0
            gone |= number(t.ratio) < 1 - masks[0] and t.advantage < 0
            loss = 0 * loss if gone else loss
        losses.append(loss)
    return losses


def sapo(row: Row, positive: float, negative: float, detached: bool) -> list[Scalar]:
    losses = []
    for t in row:
        tau = positive if t.advantage > 0 else negative
        gate = 1 / (1 + (-tau * (t.ratio - 1)).exp()) * 4 / tau
        losses.append(-t.advantage * (constant(gate) * t.lp if detached else gate))
    return losses


def topr(row: Row, threshold: float) -> list[Scalar]:
    alphas = [min(number(t.ratio), 1.0) if t.advantage <= threshold else 1.0 for t in row]
    return [-alpha * t.advantage * t.lp for alpha, t in zip(alphas, row, strict=True)]


def opmd(row: Row, tau: float) -> list[Scalar]:
    return [-t.advantage * t.lp / (1 + tau) for t in row]


def sppo(row: Row, epsilon: float) -> list[Scalar]:
    kept = [1 / (1 + epsilon) <= number(t.ratio) <= 1 + epsilon for t in row]
    return [-t.advantage * (t.lp - t.old) * k for t, k in zip(row, kept, strict=True)]


def sft(row: Row) -> list[Scalar]:
    return [-t.lp for t in row]


def sft_is(row: Row) -> list[Scalar]:
    return [-t.lp * math.exp(number(t.lp)) for t in row]


def sft_phi(row: Row, cutoff: float) -> list[Scalar]:
    losses = []
    for t in row:
        p = math.exp(number(t.lp))
        bound = torch.tensor(math.log(cutoff), dtype=torch.float64)
        losses.append(-smaller(t.lp, bound) * p * (1 - p))
    return losses


def importance_sampling(row: Row) -> list[Scalar]:
    return [-t.advantage * t.ratio for t in row]


def rec(
    row: Row, clip_mode: str, weight: str, regularizer: str, coef: float, temp: float
) -> list[Scalar]:
    """With the default ranges 0.2, 0.2, 0.6 and 2."""
    of_row = math.exp(min(max(number(mean_log_ratio(row)), -20.0), 20.0))
    losses = []
    for t in row:
        r, a = number(t.ratio), t.advantage
        near = 0.8 <= r <= 1.2
        kept = {
            "none": True,
            "one-side": (r <= 1.2 and a >= 0) or (r >= 0.8 and a <= 0),
            "two-side": near,
            "ring": near or (a >= 0 and r <= 0.4) or (a <= 0 and r >= 3.0),
            "gspo-one-side": (of_row <= 1.2 and a >= 0) or (of_row >= 0.8 and a <= 0),
        }[clip_mode]
        w = {
            "none": 1.0,
            "importance_sampling": r,
            "gspo_importance_sampling": of_row,
            "advantage": math.exp(a / temp),
        }[weight]
        pull = {"none": 0 * t.lp, "k2": (t.lp - t.old) ** 2, "forward-kl": -t.lp}[regularizer]
        losses.append(-a * w * t.lp * kept + coef * pull)
    return losses


def dpo(rows: list[Row], beta: float, smoothing: float) -> Scalar:
    """Mean over pairs."""
    zero = torch.zeros((), dtype=torch.float64)
    sums = [sum((t.lp - t.reference for t in row), start=zero) for row in rows]
    total = zero
    for chosen, rejected in zip(sums[::2], sums[1::2], strict=True):
        right = 1 / (1 + (-beta * (chosen - rejected)).exp())
        total = total - (1 - smoothing) * right.log() - smoothing * (1 - right).log()
    return total / (len(rows) // 2)
