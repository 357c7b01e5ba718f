"""Advantages of tokens, and losses of answers, from what models say; loops over single rows."""

import math
from collections.abc import Callable

import torch

from tests.support.oracle.groups import deviation, mean
from tests.support.oracle.losses import ZERO, Scalar, minus_log_sigmoid, number
from tests.support.oracle.rows import Answer

Run = list[Answer]
"""The rows of one run."""
PerToken = list[list[float]]
"""For each row one number for each of its trained tokens."""
TokenAdvantage = Callable[[list[Answer]], PerToken]


def groups_of(answers: list[Answer]) -> list[list[Run]]:
    groups: dict[int, dict[int, Run]] = {}
    for answer in answers:
        groups.setdefault(answer.row.group, {}).setdefault(answer.row.run, []).append(answer)
    return [list(runs.values()) for runs in groups.values()]


def score(run: Run) -> float:
    return mean([math.fsum(answer.rewards) for answer in run])


def num_tokens(run: Run) -> int:
    return sum(len(answer.lp) for answer in run)


def by_group(compare: Callable[[list[Run]], list[float | None]]) -> TokenAdvantage:
    """One number for all tokens of a run; NaN leaves out a run that has None."""

    def advantages(answers: list[Answer]) -> PerToken:
        of_run: dict[int, float] = {}
        for group in groups_of(answers):
            for run, value in zip(group, compare(group), strict=True):
                of_run[run[0].row.run] = math.nan if value is None else value
        return [[of_run[answer.row.run]] * len(answer.lp) for answer in answers]

    return advantages


def grpo(group: list[Run]) -> list[float | None]:
    scores = [score(run) for run in group]
    middle, spread = (mean(scores), deviation(scores)) if len(scores) > 1 else (0.0, 1.0)
    return [(own - middle) / (spread + 1e-6) for own in scores]


def rloo(group: list[Run]) -> list[float | None]:
    scores = [score(run) for run in group]
    return [
        own - (mean(scores[:place] + scores[place + 1 :]) if len(scores) > 1 else 0.0)
        for place, own in enumerate(scores)
    ]


def shortest(group: list[Run], num_kept: int) -> list[Run]:
    border = sorted(num_tokens(run) for run in group)[:num_kept][-1]
    return [run for run in group if num_tokens(run) <= border]


def gfpo(group: list[Run], num_kept: int) -> list[float | None]:
    kept = shortest(group, num_kept)
    values = iter(grpo(kept))
    return [next(values) if any(run is one for one in kept) else None for run in group]


def whitened(values: PerToken) -> PerToken:
    every = [value for row in values for value in row]
    scale = math.sqrt(deviation(every) ** 2 + 1e-8)
    middle = mean(every)
    return [[(value - middle) / scale for value in row] for row in values]


def gae(answer: Answer, gamma: float, lam: float) -> list[float]:
    """Over the tokens that are trained on, from the last to the first."""
    found: list[float] = []
    later = next_value = 0.0
    for reward, value in zip(reversed(answer.rewards), reversed(answer.values), strict=True):
        own = number(value)
        later = reward + gamma * next_value - own + gamma * lam * later
        next_value = own
        found.insert(0, later)
    return found


def returns(answers: list[Answer], gamma: float, lam: float) -> PerToken:
    """The targets of the critic."""
    return [
        [a + number(v) for a, v in zip(gae(answer, gamma, lam), answer.values, strict=True)]
        for answer in answers
    ]


def ppo(answers: list[Answer], gamma: float = 1.0, lam: float = 1.0) -> PerToken:
    return whitened([gae(answer, gamma, lam) for answer in answers])


def vapo(answers: list[Answer], alpha: float, least: float) -> PerToken:
    return whitened(
        [gae(one, 1.0, max(least, 1 - 1 / (alpha * max(len(one.lp), 1)))) for one in answers]
    )


def pf_ppo(answers: list[Answer], power: float) -> PerToken:
    weights = [abs(answer.row.reward) ** power + 1e-12 for answer in answers]
    shares = [len(weights) * weight / math.fsum(weights) for weight in weights]
    rows = zip(ppo(answers), shares, strict=True)
    return [[share * value for value in row] for row, share in rows]


def reinforce_plus_plus(answers: list[Answer], gamma: float = 1.0) -> PerToken:
    found = []
    for answer in answers:
        later, row = 0.0, list[float]()
        for reward in reversed(answer.rewards):
            later = reward + gamma * later
            row.insert(0, later)
        found.append(row)
    return whitened(found)


def teachers(answers: list[Answer], pull: Callable[[float, float], float]) -> PerToken:
    """By the log-probabilities of the teacher and of the student at each token."""
    return [
        [pull(*pair) for pair in zip(answer.teacher, answer.student, strict=True)]
        for answer in answers
    ]


def jsd(teacher: float, student: float) -> float:
    mixture = math.log((math.exp(teacher) + math.exp(student)) / 2)
    return mixture - (teacher + student) / 2


def jensen_shannon(teacher: float, student: float) -> float:
    return 0.5 * (math.log((math.exp(teacher) + math.exp(student)) / 2) - student)


def grpo_with_teacher(answers: list[Answer], coef: float) -> PerToken:
    gaps = teachers(answers, lambda teacher, student: teacher - student)
    rows = zip(by_group(grpo)(answers), gaps, strict=True)
    return [[a + coef * gap for a, gap in zip(*row, strict=True)] for row in rows]


def moved(run: Run, other: str) -> Scalar:
    """The change of a run's log-probability from another policy."""
    pairs = [pair for a in run for pair in zip(a.lp, getattr(a, other), strict=True)]
    return sum((lp - before for lp, before in pairs), start=ZERO)


def kto_loss(answers: list[Answer], beta: float, good: float, bad: float) -> Scalar:
    groups = groups_of(answers)
    runs = [run for group in groups for run in group]
    shift = max(mean([number(moved(run, "reference")) for run in runs]), 0.0)
    total, num_rows = ZERO, 0
    for group in groups:
        scores = [score(run) for run in group]
        for run, own in zip(group, scores, strict=True):
            gap = beta * (moved(run, "reference") - shift)
            if len(set(scores)) > 1 and own != mean(scores):
                up = own > mean(scores)
                total = total + (good if up else bad) * torch.sigmoid(-gap if up else gap)
                num_rows += len(run)
    return total / num_rows


def online_dpo_loss(answers: list[Answer], beta: float) -> Scalar:
    """A pair counts as two rows, or as many as its runs have."""
    total, num_rows = ZERO, 0
    for group in groups_of(answers):
        scores = [score(run) for run in group]
        if max(scores) > min(scores):
            best, worst = (group[scores.index(of)] for of in (max(scores), min(scores)))
            margin = beta * (moved(best, "reference") - moved(worst, "reference"))
            total = total + minus_log_sigmoid(margin)
            num_rows += len(best) + len(worst)
    return 2 * total / num_rows


def gvpo_loss(answers: list[Answer], beta: float) -> Scalar:
    total = ZERO
    for group in groups_of(answers):
        if len(group) < 2:
            continue
        changes = [beta * moved(run, "rollout") for run in group]
        scores = [score(run) for run in group]
        middle, reached = mean(scores), mean([number(change) for change in changes])
        errors = [
            ((change - reached) - (own - middle)) ** 2 / 2
            for change, own in zip(changes, scores, strict=True)
        ]
        total = total + len(group) * sum(errors, start=ZERO) / (len(group) - 1)
    return total / len(answers)
