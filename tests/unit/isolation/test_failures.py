"""Failures of users' code are told in one sentence."""

import pytest

from trinity.isolation.values import MAX_SENTENCE_CHARACTERS, Failure


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("no digits"), "ValueError: no digits"),
        (
            ValueError("2 validation errors for Row\nid\n  Field required\n\nsee https://x"),
            "ValueError: 2 validation errors for Row id Field required see https://x",
        ),
        (KeyError(), "KeyError"),
        (SyntaxError("bad", ("flow.py", 3, 1, "x = (\n")), "SyntaxError: bad"),
    ],
)
def test_the_sentence_begins_with_what_went_wrong(error: Exception, sentence: str) -> None:
    """A message of several lines often ends with a link."""
    assert Failure.of(error).sentence == sentence


def test_a_long_message_is_cut() -> None:
    sentence = Failure.of(ValueError("x" * 5000)).sentence
    assert len(sentence) == MAX_SENTENCE_CHARACTERS and sentence.startswith("ValueError: xxx")
