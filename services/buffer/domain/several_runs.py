"""Statistics over several runs of a task: standard deviation, best and worst of k."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt


def over_runs(tasks: Sequence[Sequence[float]]) -> dict[str, float]:
    """Returns means over tasks of `std@n`, and of `best@k` and `worst@k` for k = 2, 4, ... n.

    n is the most runs that a task has; the result is empty if n is 1. `best@k` is the mean over all
    draws of k runs, with replacement, of the best of them: the exact value of what Trinity-RFT
    estimates from 1000 draws.
    """
    num_runs = max((len(values) for values in tasks), default=0)
    if num_runs < 2:
        return {}
    found = {f"std@{num_runs}": _mean([float(np.std(values)) for values in tasks])}
    for k in _powers_of_two(num_runs):
        found[f"best@{k}"] = _mean([best_of(k, values) for values in tasks])
        found[f"worst@{k}"] = _mean([-best_of(k, [-value for value in values]) for values in tasks])
    return found


def best_of(k: int, values: Sequence[float]) -> float:
    """Returns the expected maximum of k draws with replacement."""
    ranks: npt.NDArray[np.float64] = np.arange(len(values) + 1) / len(values)
    return float(np.dot(np.sort(values), np.diff(ranks**k)))


def _powers_of_two(most: int) -> Iterator[int]:
    """Yields the powers of two below `most`, and `most` itself."""
    k = 2
    while k < most:
        yield k
        k *= 2
    yield most


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
