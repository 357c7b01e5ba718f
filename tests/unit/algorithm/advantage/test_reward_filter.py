"""RAFT's choice keeps the good and leaves out the others."""

import numpy as np
import pytest

from tests.unit.algorithm.advantage.builders import compute
from trinity.algorithm.advantage.samples import Samples

SAMPLES = Samples.of_groups([1.0, 0.0, 0.25, 1.0], [1.0, 1.0], [0.0, 0.0], [0.5], [-1.0])


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [
        (None, [True, False, False, True, False, False, False, False, True, False]),
        (0.25, [True, False, True, True, True, True, False, False, True, False]),
        (2.0, [False] * 10),
    ],
)
def test_what_is_good_enough_counts_one_and_all_else_is_left_out(
    threshold: float | None, kept: list[bool]
) -> None:
    chosen = compute("reward_filter", SAMPLES, threshold=threshold)
    assert chosen.left_out is not None and chosen.reason
    assert (~chosen.left_out).tolist() == kept
    assert chosen.values.tolist() == [float(one) for one in kept]


def test_a_group_without_differences_is_left_out_exactly_whatever_its_rewards() -> None:
    alike = Samples.of_groups([0.1] * 7, [1e6 + 0.1] * 3)
    left_out = compute("reward_filter", alike).left_out
    assert left_out is not None and np.all(left_out)
