"""Seeded draws of rows, and the selection of tasks by their estimated pass rates."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from trinity.config.schema.choices import DifficultyConfig
from trinity.config.schema.data import SelectorType

WORD = 2**64
IntVector = npt.NDArray[np.int64]
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BITS = 53
FloatVector = npt.NDArray[np.floating[Any]]
TINY = 1e-6
NEW_SHARE = 0.1
"""Weight of the newest measurement in the running mean of the capability."""
POOR_PREDICTION = 0.25
PART = 65_536


def seeded_generator(seeds: tuple[int, ...], number: int) -> np.random.Generator:
    """Returns a generator that is the same for the same seeds and number, on any machine."""
    words = [*(seed % WORD for seed in seeds), number]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@lru_cache(maxsize=2)
def permutation(seeds: tuple[int, ...], epoch: int, num_rows: int) -> IntVector:
    """Returns the shuffled row order of one epoch."""
    return seeded_generator(seeds, epoch).permutation(num_rows)


def draw_row_numbers(
    selector_type: SelectorType, *, seeds: tuple[int, ...], num_rows: int, first: int, count: int
) -> Sequence[int]:
    """Returns the rows of draws `first` to `first + count - 1`, counted over all epochs from 0.

    `seeds` are those of the experiment and of the selector: each changes the order. With `random`,
    no row is taken twice in one call before all rows were taken.
    """
    match selector_type:
        case "shuffle":
            places = (divmod(number, num_rows) for number in range(first, first + count))
            return [int(permutation(seeds, epoch, num_rows)[place]) for epoch, place in places]
        case "random":
            return list(_by_chance(seeded_generator(seeds, first), num_rows, count))
        case _:
            return [number % num_rows for number in range(first, first + count)]


def _by_chance(chance: np.random.Generator, num_rows: int, count: int) -> Iterator[int]:
    while count > 0:
        size = min(count, num_rows)
        yield from (int(row) for row in chance.choice(num_rows, size, replace=False))
        count -= size


@dataclass(frozen=True, slots=True)
class TasksetDraws:
    """Draws of one taskset: the number of the first, and the place of each among all draws."""

    taskset: int
    first: int
    places: tuple[int, ...]


@lru_cache(maxsize=2)
def _order(seeds: tuple[int, ...], epoch: int, sizes: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Returns the taskset of each draw of an epoch, each once per row, [sum of sizes]."""
    tasksets = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    return tasksets[permutation(seeds, epoch, len(tasksets))]


def interleave(
    sizes: Sequence[int], *, seeds: tuple[int, ...], first: int, count: int
) -> list[TasksetDraws]:
    """Deals draws `first` to `first + count - 1` to tasksets of these sizes.

    In every epoch each taskset is drawn from as often as it has rows, in random order.
    """
    if len(sizes) == 1:
        return [TasksetDraws(0, first, tuple(range(count)))]
    total, known = sum(sizes), tuple(sizes)
    epoch, start = divmod(first, total)
    before = np.bincount(_order(seeds, epoch, known)[:start], minlength=len(sizes))
    firsts = [epoch * size + int(seen) for size, seen in zip(sizes, before, strict=True)]
    dealt = [_of_draw(number, seeds, known, total) for number in range(first, first + count)]
    places = {
        taskset: tuple(i for i, own in enumerate(dealt) if own == taskset) for taskset in set(dealt)
    }
    return [TasksetDraws(taskset, firsts[taskset], places[taskset]) for taskset in sorted(places)]


def _of_draw(number: int, seeds: tuple[int, ...], sizes: tuple[int, ...], total: int) -> int:
    epoch, place = divmod(number, total)
    return int(_order(seeds, epoch, sizes)[place])


def hash_uniform(seed: int, *places_N: IntVector) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) per sample, from the seed and its position, [N].

    SplitMix64 over the numbers, one after the other (https://doi.org/10.1145/2660193.2660195).
    """
    state_N = np.full(places_N[0].shape, seed % 2**64, dtype=np.uint64)
    for numbers_N in places_N:
        state_N = _mixed(state_N ^ _mixed(numbers_N.astype(np.uint64)))
    return (state_N >> np.uint64(64 - BITS)).astype(np.float64) * 2.0**-BITS


def _mixed(state_N: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    mixed_N = state_N + GOLDEN
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(30))) * FIRST
    mixed_N = (mixed_N ^ (mixed_N >> np.uint64(27))) * SECOND
    return mixed_N ^ (mixed_N >> np.uint64(31))


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
        """Returns `count` tasks; a task repeats only after all that are not excluded were drawn."""
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
