"""The pictures of the squares example tell the count, and nothing else does."""

import base64
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from examples.squares.pictures import COUNTS, CROWDED, Row, make_pictures
from trinity.data.images import decode

ANSWERS = {str(count) for count in COUNTS}


def contents_of(rows: Sequence[Row]) -> list[bytes]:
    return [base64.b64decode(str(row["images"][0]).partition(",")[2]) for row in rows]  # type: ignore[index]


def squares_in(content: bytes) -> int:
    """Counts the cells that are not all background."""
    pixels = np.asarray(decode(content)).astype(int).min(-1)
    cells = pixels.reshape(4, 14, 4, 14).min(axis=(1, 3))
    return int((cells < 225).sum())


def test_every_count_is_as_frequent_and_every_answer_right() -> None:
    made = make_pictures(1, num_train=60, num_test=30)
    for rows in (made.train, made.test):
        answers = [str(row["answer"]) for row in rows]
        assert set(Counter(answers).values()) == {len(rows) // len(COUNTS)}
        assert [str(squares_in(content)) for content in contents_of(rows)] == answers
    assert not set(contents_of(made.train)) & set(contents_of(made.test))
    assert {str(row["question"]) for row in [*made.sft, *made.test]} == {"<image>How many squares?"}


def test_the_teacher_overlooks_one_square_of_crowded_pictures_alone() -> None:
    made = make_pictures(2, num_train=120, num_test=6)
    for row, content in zip(made.sft, contents_of(made.sft), strict=True):
        missing = squares_in(content) - int(str(row["answer"]))
        assert missing in ((0, 1) if squares_in(content) >= CROWDED else (0,))
    wrong = sum(
        squares_in(c) != int(str(r["answer"]))
        for r, c in zip(made.sft, contents_of(made.sft), strict=True)
    )
    assert 0 < wrong < len(made.sft)


def test_the_controls_pictures_tell_nothing() -> None:
    made = make_pictures(3, num_train=300, num_test=300, shuffled=True)
    right = [
        squares_in(c) == int(str(r["answer"]))
        for r, c in zip(made.test, contents_of(made.test), strict=True)
    ]
    assert np.mean(right) == pytest.approx(1 / 6, abs=0.08)


def test_a_seed_gives_the_same_rows() -> None:
    assert make_pictures(4, num_train=12, num_test=6) == make_pictures(4, num_train=12, num_test=6)
