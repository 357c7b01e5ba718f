"""The addition example's data keeps its promises about what is trained and what is tested."""

import pytest

from examples.addition.problems import Row, has_carry, make_problems

SEEDS = (1, 42)


def pair_of(row: Row) -> tuple[int, int]:
    first, second = row["question"].removesuffix("=").split("+")
    return int(first), int(second)


def is_right(row: Row) -> bool:
    return row["answer"] == str(sum(pair_of(row)))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_held_out_problem_is_trained_in_either_order(seed: int) -> None:
    problems = make_problems(seed)
    held_out = {frozenset(pair_of(row)) for row in problems.test}
    for rows in (problems.sft, problems.train):
        assert held_out.isdisjoint(frozenset(pair_of(row)) for row in rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_least_a_thousand_problems_are_held_out_each_once(seed: int) -> None:
    test = make_problems(seed).test
    assert len({frozenset(pair_of(row)) for row in test}) == len(test) >= 1000


def test_tasks_and_test_hold_right_answers_only() -> None:
    problems = make_problems(seed=42)
    assert all(is_right(row) for row in [*problems.train, *problems.test])


def test_demonstrations_err_only_by_forgetting_a_carry_and_do_so_more_often_than_not() -> None:
    sft = make_problems(seed=42).sft
    carried = [row for row in sft if has_carry(pair_of(row))]
    wrong = [row for row in sft if not is_right(row)]
    assert all(has_carry(pair_of(row)) for row in wrong)
    assert all(int(row["answer"]) == sum(pair_of(row)) - 10 for row in wrong)
    assert 0.57 < len(wrong) / len(carried) < 0.67


def test_the_same_seed_makes_the_same_problems_and_another_seed_others() -> None:
    assert make_problems(seed=1) == make_problems(seed=1)
    assert make_problems(seed=1).test != make_problems(seed=2).test
