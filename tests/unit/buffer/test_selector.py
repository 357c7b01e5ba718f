"""Which rows are drawn: every selector, and several tasksets at once."""

from collections import Counter
from itertools import pairwise

import pytest

from services.buffer.domain.task_draws import draw_row_numbers, interleave
from trinity.config.schema.data import SelectorType

SEEDS = (7, 42)


def drawn(kind: SelectorType, *, num_rows: int, first: int, count: int, seed: int = 7) -> list[int]:
    return list(
        draw_row_numbers(kind, seeds=(seed, 42), num_rows=num_rows, first=first, count=count)
    )


@pytest.mark.parametrize("kind", ["sequential", "shuffle"])
def test_an_epoch_takes_every_row_once_however_it_is_cut(kind: SelectorType) -> None:
    whole = drawn(kind, num_rows=10, first=0, count=30)
    cut = [
        row for first in range(0, 30, 4) for row in drawn(kind, num_rows=10, first=first, count=4)
    ]
    assert cut[:30] == whole
    for epoch in range(3):
        assert sorted(whole[10 * epoch : 10 * epoch + 10]) == list(range(10))


def test_shuffle_and_random_follow_the_seed() -> None:
    for kind in ("shuffle", "random"):
        first = drawn(kind, num_rows=100, first=20, count=20)
        assert first == drawn(kind, num_rows=100, first=20, count=20)
        assert first != drawn(kind, num_rows=100, first=20, count=20, seed=8)
        assert first != drawn(kind, num_rows=100, first=40, count=20)


def test_chance_takes_no_row_twice_in_a_step_before_all_were_taken() -> None:
    rows = drawn("random", num_rows=5, first=0, count=13)
    assert max(Counter(rows).values()) == 3 and len(set(rows[:5])) == 5
    counts = Counter(
        row for step in range(600) for row in drawn("random", num_rows=10, first=3 * step, count=3)
    )
    assert all(120 < counts[row] < 240 for row in range(10))  # 180 each on average


def dealt(sizes: tuple[int, ...], first: int, count: int) -> list[tuple[int, int]]:
    """Taskset and own number of each draw."""
    found: dict[int, tuple[int, int]] = {}
    for share in interleave(sizes, seeds=SEEDS, first=first, count=count):
        for number, place in enumerate(share.places):
            found[place] = (share.taskset, share.first + number)
    return [found[place] for place in range(count)]


def test_tasksets_are_mixed_in_proportion_and_none_loses_its_place() -> None:
    sizes = (30, 10, 5)
    whole = dealt(sizes, 0, 90)
    assert [one for first in range(0, 90, 7) for one in dealt(sizes, first, 7)][:90] == whole
    for epoch in (whole[:45], whole[45:]):
        assert Counter(taskset for taskset, _ in epoch) == {0: 30, 1: 10, 2: 5}
    for taskset, size in enumerate(sizes):
        own = [number for one, number in whole if one == taskset]
        assert own == list(range(2 * size))
    changes = sum(one[0] != next_one[0] for one, next_one in pairwise(whole))
    assert changes > 20


def test_a_single_taskset_is_drawn_in_its_own_order() -> None:
    assert dealt((4,), 6, 3) == [(0, 6), (0, 7), (0, 8)]
