"""What a task pipeline leaves of the rows, and in which order."""

import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from trinity.errors import UserError
from trinity.operators.tasks import spool
from trinity.operators.tasks.operating import TaskPipelineRunner, ordered_indices
from trinity.operators.tasks.spool import (
    BYTES_AT_ONCE,
    RowSpool,
    SeenDigests,
    SpoolColumn,
    argsort_on_disk,
    disk_zeros,
    sortable_keys,
)
from trinity.operators.tasks.task_pipeline import Ordering, ResolvedTaskPipeline, TaskOperator
from trinity.operators.tasks.task_rows import Row, TaskChanges, TaskRows
from trinity.runtime.json_values import JsonObject

ROWS: list[Row] = [
    {"question": "1+1=", "hard": 3},
    {"question": "  ", "hard": 1},
    {"question": "2+2=", "hard": 0},
    {"question": "1+1=", "hard": 7},
    {"question": "3+3=", "hard": 9},
    {"question": "4+4=", "hard": 2},
]
MANY = 400_000
MOST_BYTES = 6_000_000
"""A part takes less; the numbers are 3.2 MB, and to sort them in memory takes several of that."""
ODD_NUMBERS = [np.nan, 2.5, -0.0, 0.0, np.inf, -np.inf, -3.0, 2.5, -1e-300, 1e300, -np.nan, 0.0]


def step(name: str, **args: object) -> TaskOperator:
    return TaskOperator(name=name, args=args, is_own=False)  # type: ignore[arg-type]


def run(
    *operators: TaskOperator, rows: list[Row] = ROWS, at_once: int = 4, **settings: object
) -> tuple[list[tuple[int, JsonObject]], TaskPipelineRunner]:
    """What stays, with its number in the source; rows come in parts."""
    pipeline = ResolvedTaskPipeline.model_validate({"operators": operators, **settings})
    with RowSpool() as spool:
        operating = TaskPipelineRunner(pipeline, spool, lambda _: nullcontext())
        for first in range(0, len(rows), at_once):
            operating.process(rows[first : first + at_once])
        parts = list(operating.iterate_ordered())
        kept = [pair for numbers, rows in parts for pair in zip(numbers, rows, strict=True)]
        return [(int(number), json.loads(row)) for number, row in kept], operating


def numbers(kept: list[tuple[int, JsonObject]]) -> list[int]:
    return [number for number, _ in kept]


def test_what_is_left_out_is_counted_by_operator_and_reason() -> None:
    kept, operating = run(
        step("length_filter", column="question"),
        step("duplicate_filter", columns=["question"]),
        step("number_filter", column="hard", at_least=1.0),
    )
    assert numbers(kept) == [0, 4, 5]
    assert operating.num_read == 6
    assert operating.left_out == {
        "length_filter: the length of question is not in 1..": 1,
        "duplicate_filter: its question was there before": 1,
        "number_filter: hard is not in 1..inf": 1,
    }


@pytest.mark.parametrize("at_once", [1, 2, 6])
def test_the_parts_that_rows_come_in_change_nothing(at_once: int) -> None:
    operators = (
        step("duplicate_filter", columns=["question"]),
        step("column_score", column="hard"),
    )
    ordering = Ordering(priority_weights={"hard": -1.0})
    kept, _ = run(*operators, at_once=at_once, ordering=ordering)
    assert numbers(kept) == [2, 1, 5, 0, 4]


def test_weights_order_tasks_and_the_first_ones_stay() -> None:
    score = step("column_score", column="hard", score="difficulty")
    kept, operating = run(score, ordering=Ordering(top_k=2))
    assert numbers(kept) == [2, 1], "without weights the easy ones come first"
    assert operating.ordered_by == {"difficulty": -0.7}
    assert operating.left_out == {"top_k: beyond the first 2": 4}
    kept, _ = run(score, ordering=Ordering(priority_weights={"difficulty": 2.0}))
    assert numbers(kept) == [4, 3, 0, 5, 1, 2]


def test_folding_goes_from_the_first_to_the_last_in_each_layer() -> None:
    ordering = Ordering(method="folding", folding_layers=2, priority_weights={"hard": 1.0})
    kept, _ = run(step("column_score", column="hard"), ordering=ordering)
    assert numbers(kept) == [4, 0, 1, 3, 5, 2]


def test_by_chance_the_same_seed_gives_the_same_order() -> None:
    first, _ = run(ordering=Ordering(method="shuffle", seed=5))
    again, _ = run(ordering=Ordering(method="shuffle", seed=5), at_once=1)
    other, _ = run(ordering=Ordering(method="shuffle", seed=6))
    assert numbers(first) == numbers(again) != numbers(other)
    assert sorted(numbers(first)) == list(range(6))


def test_columns_are_chosen_and_scores_that_selectors_need_are_added() -> None:
    kept, _ = run(
        step("column_score", column="hard", score="rate"),
        target_fields=["question"],
        added_scores=["rate"],
    )
    assert kept[0][1] == {"question": "1+1=", "rate": 3.0}


def test_a_score_that_selectors_need_stays_where_the_column_of_its_name_goes() -> None:
    kept, _ = run(
        step("column_score", column="hard"), target_fields=["question"], added_scores=["hard"]
    )
    assert kept[0][1] == {"question": "1+1=", "hard": 3.0}


def test_a_missing_text_is_an_empty_one() -> None:
    rows: list[Row] = [{"question": None}, {"question": "None"}, {"question": None}]
    kept, _ = run(step("length_filter", column="question"), rows=rows)
    assert numbers(kept) == [1]
    kept, _ = run(step("duplicate_filter", columns=["question"]), rows=rows)
    assert numbers(kept) == [0, 1]


def test_a_weight_that_nobody_measures_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"priority_weights.fun` is measured by no operator: .* hard"
    ):
        run(step("column_score", column="hard"), ordering=Ordering(priority_weights={"fun": 1.0}))


def test_of_the_weights_of_trinity_rft_one_has_to_be_measured() -> None:
    score = step("column_score", column="hard", score="difficulty")
    weights = {"difficulty": 2.0, "diversity": 0.8}
    kept, _ = run(score, ordering=Ordering(priority_weights=weights))
    assert numbers(kept) == [4, 3, 0, 5, 1, 2]
    with pytest.raises(
        UserError,
        match=r"no operator measures `priority_weights.difficulty`, .*: the scores are no",
    ):
        run(ordering=Ordering(priority_weights=weights))


def test_a_row_without_a_column_is_named() -> None:
    with pytest.raises(UserError, match=r"task operator number_filter, rows 0 to 3: .*'ease'"):
        run(step("number_filter", column="ease"))
    with pytest.raises(UserError, match=r"row 0 \(from 0\) has no column 'answer'"):
        run(target_fields=["question", "answer"])


def swapped(tasks: TaskRows) -> TaskChanges:
    """Gives other rows, and the scores of the first ones alone in the first call."""
    is_first = not tasks.memory
    tasks.memory["called"] = True
    size = len(tasks.rows)
    rows = [{"question": str(row["question"]).strip() or "?"} for row in tasks.rows]
    scores = {"early": np.arange(size, dtype=np.float64)} if is_first else {}
    return TaskChanges(rows=rows, scores=scores)


def one_too_few(tasks: TaskRows) -> TaskChanges:
    return TaskChanges(left_out=np.zeros(len(tasks.rows) - 1, dtype=np.bool_))


def test_an_operator_of_ones_own_may_rewrite_rows_and_what_it_gives_is_checked() -> None:
    here = "tests.unit.task_operators.test_operating"
    weights = Ordering(priority_weights={"early": 1.0})
    kept, _ = run(step(f"{here}.swapped"), ordering=weights)
    assert numbers(kept) == [3, 2, 1, 0, 4, 5]
    assert kept[2][1] == {"question": "?"}
    with pytest.raises(UserError, match=r"one_too_few, rows 0 to 3: `left_out` must be 4 truth"):
        run(step(f"{here}.one_too_few"))


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
