"""Estimates of each task's pass rate, and the selection of tasks by them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.config.schema.choices import DifficultyConfig

FloatVector = npt.NDArray[np.floating[Any]]
IntVector = npt.NDArray[np.int64]
TINY = 1e-6
NEW_SHARE = 0.1
"""Weight of the newest measurement in the running mean of the capability."""
POOR_PREDICTION = 0.25
PART = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRateBeliefs:
    """A Beta distribution for the pass rate of each of N tasks.

    The capability places the model between two anchor models whose pass rates on each task are
    known: 0 is the weak anchor, 1 the strong one.
    """

    weak_N: FloatVector
    strong_N: FloatVector
    alpha_N: FloatVector
    beta_N: FloatVector
    capability: float | None
    """None before the first feedback."""
    rho: float

    @classmethod
    def initial(cls, weak_N: FloatVector, strong_N: FloatVector, rho: float) -> "PassRateBeliefs":
        """Returns uniform beliefs, before any feedback."""
        ones_N = np.ones_like(weak_N)
        return cls(
            weak_N=weak_N,
            strong_N=strong_N,
            alpha_N=ones_N,
            beta_N=ones_N.copy(),
            capability=None,
            rho=rho,
        )

    def updated(
        self, tasks_K: IntVector, pass_rates_K: FloatVector, config: DifficultyConfig
    ) -> "PassRateBeliefs":
        """Returns beliefs updated by the pass rates of one explore step, each task once."""
        weak, strong = self.weak_N[tasks_K].mean(), self.strong_N[tasks_K].mean()
        measured = float((pass_rates_K.mean() - weak) / (strong - weak + TINY))
        capability = measured
        if self.capability is not None:
            capability = (1 - NEW_SHARE) * self.capability + NEW_SHARE * measured
        predicted_N = np.clip(self.weak_N + (self.strong_N - self.weak_N) * capability, 0.0, 1.0)
        prediction_error = float(np.abs(predicted_N[tasks_K] - pass_rates_K).mean())
        rho = (
            self.rho / 2
            if config.adaptive_rho and prediction_error >= POOR_PREDICTION
            else self.rho
        )
        predicted_N[tasks_K] = pass_rates_K
        now = replace(self, capability=capability, rho=rho)
        return replace(
            now,
            alpha_N=now._updated(self.alpha_N, tasks_K, pass_rates_K, predicted_N, config),
            beta_N=now._updated(self.beta_N, tasks_K, 1 - pass_rates_K, 1 - predicted_N, config),
        )

    def _updated(
        self,
        counts_N: FloatVector,
        tasks_K: IntVector,
        seen_K: FloatVector,
        predicted_N: FloatVector,
        config: DifficultyConfig,
    ) -> FloatVector:
        updated_N = (1 - config.lamb) * counts_N + config.lamb + self.rho * predicted_N * config.m
        updated_N[tasks_K] += (1 - self.rho) * seen_K * config.m
        return updated_N

    def sample_tasks(
        self,
        config: DifficultyConfig,
        chance: np.random.Generator,
        count: int,
        excluded: Collection[int] = (),
    ) -> list[int]:
        """Returns `count` tasks; none repeats before all that are not excluded were taken."""
        scores_N = self._scores(config, chance)
        if excluded and len(excluded) < len(scores_N):
            scores_N[np.fromiter(excluded, np.int64)] = -np.inf
        num_free = int(np.isfinite(scores_N).sum())
        keys_N = self._keys(scores_N, config.tau, chance)
        np.negative(keys_N, out=keys_N)
        order_N = np.argsort(keys_N, kind="stable")[: min(num_free, count)]
        rounds = -(-count // num_free)
        return [int(task) for task in np.tile(order_N, rounds)[:count]]

    def _scores(self, config: DifficultyConfig, chance: np.random.Generator) -> FloatVector:
        """Returns minus the distance of each task's pass rate to the target, at most 0."""
        scores_N: FloatVector = np.empty(len(self.alpha_N))
        for part in _parts(len(scores_N)):
            alpha_K, beta_K = self.alpha_N[part], self.beta_N[part]
            rates_K = (
                chance.beta(alpha_K, beta_K) if config.do_sample else alpha_K / (alpha_K + beta_K)
            )
            scores_N[part] = -np.abs(config.target_reward - rates_K)
        return scores_N

    def _keys(self, scores_N: FloatVector, tau: float, chance: np.random.Generator) -> FloatVector:
        """Returns sort keys: the largest k are draws from softmax(scores / tau), not replaced.

        Gumbel-top-k (https://arxiv.org/abs/1903.06059).
        """
        if tau == 0:
            return scores_N
        for part in _parts(len(scores_N)):
            uniform_K = np.maximum(chance.random(len(scores_N[part])), np.finfo(np.float64).tiny)
            scores_N[part] = scores_N[part] / tau - np.log(-np.log(uniform_K))
        return scores_N


def _parts(size: int) -> Iterator[slice]:
    """Yields slices to compute at once: temporaries of a million tasks would take megabytes."""
    for first in range(0, size, PART):
        yield slice(first, first + PART)
