"""Answers found in a transcript: as many as can be, in order."""

import random
from collections.abc import Sequence
from itertools import combinations
from operator import eq

from tests.unit.subtests import as_subtests
from trinity.workflows.turns import lcs_pairs


@as_subtests(
    ("told", "answers", "places"),
    [
        ("", "ab", []),
        ("ab", "", []),
        ("abc", "abc", [0, 1, 2]),
        ("yny", "ny", [0, 1]),
        ("ynx", "ny", [1]),
        ("a", "aba", [2]),
        ("ab", "ba", [1]),
        ("xaxbx", "aqbq", [0, 2]),
    ],
)
def test_quotations_and_what_was_left_out_have_no_place(
    told: str, answers: str, places: list[int]
) -> None:
    assert [column for _, column in lcs_pairs(told, answers, eq)] == places


def most(told: Sequence[str], answers: Sequence[str]) -> int:
    def holds(chosen: Sequence[str]) -> bool:
        rest = iter(told)
        return all(one in rest for one in chosen)

    sizes = range(len(answers), -1, -1)
    return next(n for n in sizes if any(map(holds, combinations(answers, n))))


@as_subtests("seed", range(50))
def test_no_choice_of_answers_is_longer(seed: int) -> None:
    dice = random.Random(seed)
    told, answers = (dice.choices("abc", k=dice.randrange(8)) for _ in range(2))
    places = [column for _, column in lcs_pairs(told, answers, eq)]
    assert places == sorted(set(places))
    assert len(places) == most(told, answers)
    assert most(told, [answers[place] for place in places]) == len(places)
