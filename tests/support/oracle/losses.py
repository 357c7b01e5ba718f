"""The losses, slowly: one token after the other, as the formulas are written down.

A row is the list of its trained tokens; a function gives one loss for each of them. Log-
probabilities `lp` are scalars of torch, so that gradients come out of the same loops.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch

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


ZERO = torch.zeros((), dtype=torch.float64)


def aggregate(
    losses: list[list[Scalar]], mode: str, longest: int, weights: list[float] | None = None
) -> Scalar:
    """Of rows that have tokens; a row's weight is a factor on its losses, and counts nowhere."""
    rows = [row for row in losses if row]
    total = ZERO
    for row, weight in zip(losses, weights or [1.0] * len(losses), strict=True):
        if not row:
            continue
        of_row = weight * sum(row, start=ZERO)
        total = (
            total
            + {
                "token-mean": of_row / sum(len(row) for row in rows),
                "token-sum": of_row,
                "seq-mean-token-sum": of_row / len(rows),
                "seq-mean-token-mean": of_row / len(row) / len(rows),
                "seq-mean-token-sum-norm": of_row / longest / len(rows),
            }[mode]
        )
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
    return sum((t.lp - t.old for t in row), start=ZERO) / len(row)


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


def gpg(row: Row) -> list[Scalar]:
    return [-t.advantage * t.lp for t in row]


def gspo_token(row: Row, low: float, high: float) -> list[Scalar]:
    """The row's ratio as a number, with each token's own advantage and gradient."""
    of_row = min(number(mean_log_ratio(row)), 10.0)
    ratios = [math.exp(of_row) * (t.lp - constant(t.lp)).exp() for t in row]
    pairs = zip(ratios, row, strict=True)
    return [-ppo_objective(ratio, t.advantage, low, high, math.inf) for ratio, t in pairs]


def dcpo_bounds(old: float, low: float, high: float, largest: float) -> tuple[float, float]:
    """The ends of the range of ratios by bisection: where |r - 1| p reaches the bound."""
    probability = math.exp(old)

    def change(ratio: float) -> float:
        return abs(ratio - 1) * ratio * probability

    top, bottom = largest, 1.0
    for _ in range(200):
        middle = (bottom + top) / 2
        bottom, top = (middle, top) if change(middle) < high else (bottom, middle)
    below, above = 0.5, 1.0
    for _ in range(200):
        middle = (below + above) / 2
        below, above = (below, middle) if change(middle) < low else (middle, above)
    return above, top


def dcpo(row: Row, low: float, high: float, c: float) -> list[Scalar]:
    losses = []
    for t in row:
        at_least, at_most = dcpo_bounds(max(t.old, -20.0), low, high, c)
        losses.append(-ppo_objective(t.ratio, t.advantage, 1 - at_least, at_most - 1, c))
    return losses


def m2po(row: Row, largest: float, low: float = 0.3, high: float = 0.5) -> list[Scalar]:
    """`largest` is the largest |log r| that the batch allows."""
    lowest = 1 - max(1 - math.exp(-largest), low)
    highest = 1 + max(math.exp(largest) - 1, high)
    losses = []
    for t in row:
        is_out = t.ratio > highest if t.advantage > 0 else t.ratio < lowest
        bound = highest if t.advantage > 0 else lowest
        losses.append(-t.advantage * (bound + 0 * t.lp if is_out else t.ratio))
    return losses


def m2po_range(rows: list[Row], threshold: float) -> float:
    """The largest size of those that go on which keeps their second moment, cut to it, within."""
    moved = [(number(t.lp) - t.old, t.advantage) for row in rows for t in row]
    sizes = [abs(move) for move, advantage in moved if move * advantage > 0]

    def moment(most: float) -> float:
        return math.fsum(min(size, most) ** 2 for size in sizes) / len(sizes)

    if not sizes or moment(math.inf) <= threshold:
        return 20.0
    return max([size for size in sizes if moment(size) <= threshold], default=0.0)


def minus_log_sigmoid(x: Scalar) -> Scalar:
    return (1 + (-x).exp()).log()


def mean(values: list[Scalar]) -> Scalar:
    return sum(values, start=ZERO) / max(len(values), 1)


def dpo(chosen: Row, rejected: Row, *, beta: float, smoothing: float = 0.0) -> Scalar:
    sums = [sum((t.lp - t.reference for t in row), start=ZERO) for row in (chosen, rejected)]
    margin = beta * (sums[0] - sums[1])
    wrong = smoothing * minus_log_sigmoid(-margin)
    return (1 - smoothing) * minus_log_sigmoid(margin) + wrong


def ipo(chosen: Row, rejected: Row, *, beta: float, normalized: bool) -> Scalar:
    gaps = []
    for row in (chosen, rejected):
        own = [t.lp - t.reference for t in row]
        gaps.append(mean(own) if normalized else sum(own, start=ZERO))
    return (gaps[0] - gaps[1] - 1 / (2 * beta)) ** 2


def simpo(chosen: Row, rejected: Row, *, beta: float, gamma: float) -> Scalar:
    lead = mean([t.lp for t in chosen]) - mean([t.lp for t in rejected])
    return minus_log_sigmoid(beta * lead - gamma)


def orpo(chosen: Row, rejected: Row, *, beta: float) -> Scalar:
    odds = []
    for row in (chosen, rejected):
        probability = mean([t.lp for t in row]).exp()
        odds.append((probability / (1 - probability)).log())
    return -mean([t.lp for t in chosen]) + beta * minus_log_sigmoid(odds[0] - odds[1])


def held(difference: Scalar) -> Scalar:
    """Constant beyond +-20."""
    size = number(difference)
    return (
        difference if abs(size) <= 20 else constant(torch.full_like(difference, size)).sign() * 20
    )


def divergence(name: str, lp: Scalar, reference: float, old: float) -> Scalar:
    """An estimate of KL(policy, reference) at a token."""
    gap = lp - reference
    k2, k3 = gap**2 / 2, held(-gap).exp() - 1 - held(-gap)
    bounded = k3 if number(k3) <= 10 else constant(torch.full_like(k3, 10.0))
    match name:
        case "k1":
            return gap
        case "k2":
            return k2
        case "k3":
            return k3
        case "abs":
            return gap * constant(gap).sign()
        case "low_var_kl":
            return bounded
        case "corrected_k3":
            ratio = held(lp - old).exp()
            return (ratio if number(ratio) <= 2 else 2) * k3
        case "k1+":
            return constant(gap) + k2 - constant(k2)
        case "k3+":
            return constant(bounded) + k2 - constant(k2)
    raise AssertionError(name)


def value_loss(value: Scalar, old: float, target: float, cliprange: float) -> Scalar:
    clipped = clip(value, old - cliprange, old + cliprange)
    return larger((value - target) ** 2, (clipped - target) ** 2) / 2
