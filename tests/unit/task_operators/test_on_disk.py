"""What grows with the rows of a taskset lies on the disk, and gives what memory would."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from trinity.operators.tasks import spool
from trinity.operators.tasks.operating import ordered_indices
from trinity.operators.tasks.spool import (
    BYTES_AT_ONCE,
    RowSpool,
    SeenDigests,
    SpoolColumn,
    argsort_on_disk,
    disk_zeros,
    sortable_keys,
)
from trinity.operators.tasks.task_pipeline import Ordering

MANY = 400_000
MOST_BYTES = 6_000_000
"""A part takes less; the numbers are 3.2 MB, and to sort them in memory takes several of that."""
ODD_NUMBERS = [np.nan, 2.5, -0.0, 0.0, np.inf, -np.inf, -3.0, 2.5, -1e-300, 1e300, -np.nan, 0.0]


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "PART_ROWS", 7)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("size", [0, 1, 7, 50])
def test_numbers_are_sorted_as_in_memory_and_equal_ones_stay_as_they_came(size: int) -> None:
    some = np.random.default_rng(3).integers(-5, 5, size) / 3
    for numbers in (some, np.array(ODD_NUMBERS), np.zeros(size)):
        keys = disk_zeros(len(numbers), np.uint64)
        keys[:] = sortable_keys(numbers)
        assert argsort_on_disk(keys).tolist() == np.argsort(numbers, kind="stable").tolist()


@pytest.mark.usefixtures("small_parts")
def test_priorities_are_those_of_all_rows_wherever_parts_end() -> None:
    chance = np.random.default_rng(4)
    scores = {"a": chance.normal(size=40).round(1), "perplexity": chance.normal(size=40)}
    scores["a"][5] = np.nan
    least, most = (np.nanmin(scores["a"]), np.nanmax(scores["a"]))
    spread = np.nan_to_num((scores["a"] - least) / (most - least))
    hard = (scores["perplexity"] - scores["perplexity"].min()) / np.ptp(scores["perplexity"])
    wanted = np.argsort(-(0.5 * spread - 2.0 * hard), kind="stable")
    weights = {"a": 0.5, "difficulty": -2.0}
    assert ordered_indices(Ordering(), scores, weights, 40).tolist() == wanted.tolist()
    folded = ordered_indices(Ordering(method="folding", top_k=8), scores, weights, 40)
    assert folded.tolist() == [wanted[i] for i in (0, 3, 6, 1, 4, 7, 2, 5)]


def test_chance_gives_the_permutation_of_its_seed() -> None:
    wanted = np.random.Generator(np.random.PCG64(9)).permutation(1_000)
    shuffled = ordered_indices(Ordering(method="shuffle", seed=9), {}, {}, 1_000)
    assert shuffled.tolist() == wanted.tolist()


def test_an_order_of_many_tasks_takes_little_memory() -> None:
    score = SpoolColumn(np.float64)
    with little_memory():
        for first in range(0, MANY, 10_000):
            score.extend(np.arange(first, first + 10_000) % 97)
        places = ordered_indices(Ordering(), {"hard": score.values}, {"hard": -1.0}, len(score))
    assert places[:3].tolist() == [0, 97, 194]
    assert places[-1] == MANY - 1 - (MANY - 1 - 96) % 97


def test_what_was_seen_is_known_again_and_takes_little_memory() -> None:
    num_digests = 150_000  # a set of them takes 13 MB
    digests = np.random.default_rng(5).bytes(16 * num_digests)
    with little_memory():
        seen = SeenDigests(num_slots=64)
        for first in range(0, 16 * num_digests, 160_000):
            new = [digests[i : i + 16] for i in range(first, first + 160_000, 16)]
            assert not seen.add_digests(new).any()
        assert seen.add_digests([bytes(16), *new[:3], bytes(16)]).tolist() == [
            False,
            True,
            True,
            True,
            True,
        ]


def test_digests_that_meet_in_one_place_are_told_apart() -> None:
    same_place = [(one << 64).to_bytes(16, "little") for one in range(40)]
    seen = SeenDigests(num_slots=128)
    assert not seen.add_digests(same_place[:30]).any()
    assert seen.add_digests(same_place).tolist() == [True] * 30 + [False] * 10
    assert not seen.add_digests([]).any()


def test_rows_come_back_in_any_order_not_too_many_at_once() -> None:
    rows = [b"%d" % i * (i % 3 * BYTES_AT_ONCE // 3 + 1) for i in range(9)]
    with RowSpool() as spool:
        spool.extend(rows[:4])
        spool.extend(rows[4:])
        wanted = np.array([8, 0, 3, 7, 2, 5])
        parts = list(spool.read(wanted))
        assert [row for _, part in parts for row in part] == [rows[i] for i in wanted]
        assert np.concatenate([places for places, _ in parts]).tolist() == wanted.tolist()
        assert all(len(part) == 1 or sum(map(len, part)) <= BYTES_AT_ONCE for _, part in parts)
        assert not list(spool.read(wanted[:0]))
