"""Samples of groups, runs and steps of many shapes."""

from dataclasses import fields, replace

import numpy as np
from hypothesis import strategies as st

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.samples import Advantages, IntVector, Samples

REWARDS = st.sampled_from([0.0, 1.0, 0.1, -0.3, 2.5]) | st.floats(-100, 100, width=32)


def random_samples(
    seed: int, *, num_groups: int = 12, max_runs: int = 6, max_steps: int = 4
) -> Samples:
    """Ragged groups of ragged runs; every third run has no step rewards, states meet often."""
    rng = np.random.default_rng(seed)
    places = [
        (group, run, step)
        for group in range(num_groups)
        for run in range(rng.integers(1, max_runs + 1))
        for step in range(rng.integers(1, max_steps + 1))
    ]
    return samples_at(places, seed)


def samples_at(places: list[tuple[int, int, int]], seed: int) -> Samples:
    """Samples at these places (group, run, step), everything else drawn."""
    rng = np.random.default_rng(seed)
    groups, runs, steps = np.array(places, dtype=np.int64).T
    size = len(places)
    given = rng.normal(size=size).round(1)
    given[(rng.random(size) < 0.2) | (runs % 3 == 0)] = np.nan
    return Samples(
        rewards=rng.choice([0.0, 0.1, 0.7, 1.0], size=size)
        + (rng.random(size) < 0.3) * rng.normal(size=size),
        groups=groups,
        runs=runs,
        steps=steps,
        lots=rng.random(size),
        mean_logprobs=-rng.random(size),
        step_rewards=given,
        states=rng.integers(-1, max(size // 3, 1), size=size),
    )


@st.composite
def many_samples(draw: st.DrawFn, max_steps: int = 3) -> Samples:
    """One to eight groups of one to five runs of one step or more."""
    sizes = draw(
        st.lists(
            st.lists(st.integers(1, max_steps), min_size=1, max_size=5), min_size=1, max_size=8
        )
    )
    places = [
        (group, run, step)
        for group, runs in enumerate(sizes)
        for run, num_steps in enumerate(runs)
        for step in range(num_steps)
    ]
    samples = samples_at(places, draw(st.integers(0, 2**31)))
    rewards = draw(st.lists(REWARDS, min_size=len(places), max_size=len(places)))
    return replace(samples, rewards=np.array(rewards, dtype=np.float64))


def taken(samples: Samples, order: IntVector) -> Samples:
    """The samples in another order, as they are."""
    return replace(
        samples, **{one.name: getattr(samples, one.name)[order] for one in fields(samples)}
    )


def groups_permuted(samples: Samples, new_number_G: IntVector) -> tuple[Samples, IntVector]:
    """The same groups under other numbers, in their order; and where each sample came from."""
    numbers_N = new_number_G[samples.groups]
    order = np.argsort(numbers_N, kind="stable")
    return replace(taken(samples, order), groups=numbers_N[order]), order


def compute(name: str, samples: Samples, **arguments: object) -> Advantages:
    """Call a function by its name."""
    return ADVANTAGES.get(name)(samples, **arguments)
