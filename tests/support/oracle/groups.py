"""Advantages within groups, as slow and plain as they can be written."""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Groups = list[list[int]]
FloatVector = npt.NDArray[np.float64]
IntVector = npt.NDArray[np.int64]


class Samples(Protocol):
    """Samples in order of group, run and step; every array has one entry per sample."""

    @property
    def rewards(self) -> FloatVector: ...
    @property
    def groups(self) -> IntVector: ...
    @property
    def runs(self) -> IntVector: ...
    @property
    def steps(self) -> IntVector: ...
    @property
    def mean_logprobs(self) -> FloatVector: ...
    @property
    def step_rewards(self) -> FloatVector: ...
    @property
    def states(self) -> IntVector: ...


Formula = Callable[[Any], FloatVector]
"""NaN leaves a sample out."""


def groups_of(samples: Samples) -> Groups:
    """Indexes of each group's samples."""
    return [
        [i for i in range(len(samples.groups)) if samples.groups[i] == group]
        for group in sorted(set(samples.groups.tolist()))
    ]


def runs_of(samples: Samples, group: Iterable[int]) -> Groups:
    """Indexes of each run's samples, in order of their steps."""
    runs: dict[int, list[int]] = {}
    for i in group:
        runs.setdefault(int(samples.runs[i]), []).append(i)
    return [sorted(run, key=lambda i: int(samples.steps[i])) for run in runs.values()]


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


def deviation(values: list[float], ddof: int = 1) -> float:
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - ddof))


def each_group(samples: Samples, score: Callable[[list[float]], list[float]]) -> FloatVector:
    """Scores of each group from its rewards alone."""
    scores = np.zeros(len(samples.rewards))
    for group in groups_of(samples):
        scores[group] = score([float(samples.rewards[i]) for i in group])
    return scores


def by_run(samples: Any, formula: Callable[[Any], FloatVector]) -> FloatVector:
    """A formula of runs, each with the means of its samples, whose result all of these get."""
    runs = [run for group in groups_of(samples) for run in runs_of(samples, group)]
    last = [run[-1] for run in runs]
    one_each = replace(samples, **{f.name: getattr(samples, f.name)[last] for f in fields(samples)})
    for name in ("rewards", "mean_logprobs"):
        values = getattr(samples, name)
        means = np.array([mean([float(values[i]) for i in run]) for run in runs])
        one_each = replace(one_each, **{name: means})
    scores = np.zeros(len(samples.rewards))
    for run, score in zip(runs, formula(one_each), strict=True):
        scores[run] = score
    return scores


def grpo(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    rank_penalty: float | None = None,
    std_cal_level: str = "group",
) -> FloatVector:
    rewards = [float(r) for r in samples.rewards]
    scores = np.zeros(len(rewards))
    for group in groups_of(samples):
        compared = [rewards[i] for i in group]
        if rank_penalty is not None:
            logprobs = [float(samples.mean_logprobs[i]) for i in group]
            ranks = [sum(other < own for other in logprobs) for own in logprobs]
            compared = [
                reward * (1 - rank_penalty * rank / len(group))
                for reward, rank in zip(compared, ranks, strict=True)
            ]
        middle, spread = 0.0, 1.0
        if len(group) > 1:
            middle, spread = mean(compared), deviation(compared)
        if std_cal_level == "batch":
            spread = deviation(rewards) if len(rewards) > 1 else 1.0
        for i in group:
            scores[i] = (rewards[i] - middle) / (spread + epsilon)
    return scores


def step_wise_grpo(
    samples: Samples,
    *,
    epsilon: float = 1e-6,
    enable_step_norm: bool = False,
    std_cal_level: str = "group",
) -> FloatVector:
    scores = np.zeros(len(samples.rewards))
    all_runs = [run for group in groups_of(samples) for run in runs_of(samples, group)]
    last_rewards = [float(samples.rewards[run[-1]]) for run in all_runs]
    for group in groups_of(samples):
        runs = runs_of(samples, group)
        rewards = [float(samples.rewards[run[-1]]) for run in runs]
        middle, spread = 0.0, 1.0
        if len(runs) > 1:
            middle, spread = mean(rewards), deviation(rewards)
        if std_cal_level == "batch":
            spread = deviation(last_rewards) if len(last_rewards) > 1 else 1.0
        for run, reward in zip(runs, rewards, strict=True):
            score = reward - middle
            if std_cal_level != "none":
                score /= spread + epsilon
            scores[run] = score / len(run) if enable_step_norm else score
    return scores


def dr_grpo(samples: Samples) -> FloatVector:
    return each_group(samples, lambda r: r if len(r) == 1 else [one - mean(r) for one in r])


def opmd(samples: Samples, *, opmd_baseline: str = "mean", tau: float = 1.0) -> FloatVector:
    def score(rewards: list[float]) -> list[float]:
        baseline = 0.0
        if len(rewards) > 1 and opmd_baseline == "mean":
            baseline = mean(rewards)
        elif len(rewards) > 1:
            baseline = tau * math.log(mean([math.exp(r / tau) for r in rewards]))
        return [r - baseline for r in rewards]

    return each_group(samples, score)


def asymre(samples: Samples, *, baseline_shift: float = -0.1) -> FloatVector:
    return each_group(
        samples,
        lambda r: r if len(r) == 1 else [one - (mean(r) + baseline_shift) for one in r],
    )


def rec(samples: Samples, *, epsilon: float = 1e-6, std_normalize: bool = False) -> FloatVector:
    def score(rewards: list[float]) -> list[float]:
        middle, spread = 0.0, 1.0
        if len(rewards) > 1:
            middle, spread = mean(rewards), deviation(rewards, ddof=0)
        scale = spread + epsilon if std_normalize else 1.0
        return [(r - middle) / scale for r in rewards]

    return each_group(samples, score)


def maxrl(samples: Samples) -> FloatVector:
    """The mean of the right answers' scores less the mean of all scores, as weights of scores."""

    def score(rewards: list[float]) -> list[float]:
        total = math.fsum(rewards)
        if total <= 0 or min(rewards) < 0:
            return [0.0 for _ in rewards]
        size = len(rewards)
        return [size * (reward / total - 1 / size) for reward in rewards]

    return each_group(samples, score)


def grpo_passk(samples: Samples, *, epsilon: float = 1e-6, norm: bool = True) -> FloatVector:
    def score(rewards: list[float]) -> list[float]:
        if len(rewards) == 1:
            return [0.0]
        first, second = sorted(rewards, reverse=True)[:2]
        lead = (first - second) / (deviation(rewards) + epsilon if norm else 1.0)
        best = rewards.index(first)
        return [lead if i == best else 0.0 for i in range(len(rewards))]

    return each_group(samples, score)


def gigpo(
    samples: Samples,
    *,
    omega: float = 1.0,
    gamma: float = 1.0,
    fnorm: str = "none",
    epsilon: float = 1e-6,
    anchors: str = "group",
) -> FloatVector:
    def compared(values: list[float]) -> list[float]:
        middle, spread = 0.0, 1.0
        if len(values) > 1:
            middle = mean(values)
            spread = deviation(values) if fnorm == "std" else 1.0
        return [(v - middle) / (spread + epsilon) for v in values]

    whole, returns = np.zeros(len(samples.rewards)), np.zeros(len(samples.rewards))
    for group in groups_of(samples):
        runs = runs_of(samples, group)
        totals = []
        for run in runs:
            given = [float(samples.step_rewards[i]) for i in run]
            rewards = [0.0 if math.isnan(one) else one for one in given]
            if all(map(math.isnan, given)):
                rewards[-1] = float(samples.rewards[run[-1]])
            totals.append(math.fsum(rewards))
            for t, i in enumerate(run):
                returns[i] = sum(gamma ** (k - t) * rewards[k] for k in range(t, len(run)))
        for run, score in zip(runs, compared(totals), strict=True):
            whole[run] = score
    single = np.zeros(len(samples.rewards))
    places = [0 if anchors == "all" else int(group) for group in samples.groups]
    keys = list(zip(places, samples.states.tolist(), strict=True))
    for place, state in {key for key in keys if key[1] != -1}:
        same = [i for i, key in enumerate(keys) if key == (place, state)]
        if len(same) > 1:
            single[same] = compared([float(returns[i]) for i in same])
    return whole + omega * single


def without_equal(formula: Formula) -> Formula:
    """Leaves out groups whose runs have all one reward, or of one run (DAPO's sampling)."""

    def kept(samples: Any) -> FloatVector:
        values = formula(samples)
        for group in groups_of(samples):
            scores = [mean([float(samples.rewards[i]) for i in r]) for r in runs_of(samples, group)]
            if len(set(scores)) == 1:
                values[group] = np.nan
        return values

    return kept


def above_the_mean(samples: Samples) -> FloatVector:
    """RAFT: 1, or left out; a single one is compared with 0."""

    def score(rewards: list[float]) -> list[float]:
        border = mean(rewards) if len(rewards) > 1 else 0.0
        return [1.0 if reward > border else math.nan for reward in rewards]

    return each_group(samples, score)
