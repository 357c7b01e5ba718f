"""Failures of users' code are told in one sentence."""

import runpy
from json import JSONDecodeError
from pathlib import Path

import pytest

from trinity.errors import UserError
from trinity.user_code.values import MAX_SENTENCE_CHARACTERS, Failure, encode_known, place_of


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


@pytest.mark.parametrize(
    ("raises", "kind"),
    [
        ("json.loads('{')", JSONDecodeError),
        ("encode({'a': object()}, 'r')", UserError),
        ("1 / 0", ZeroDivisionError),
    ],
)
def test_the_place_is_the_users_line_wherever_the_error_was_raised(
    tmp_path: Path, raises: str, kind: type[Exception]
) -> None:
    file = tmp_path / "flow.py"
    file.write_text(
        "import json\n"
        "from trinity.user_code.values import encode_known as encode\n"
        "def run():\n"
        f"    return {raises}\n"
    )
    names = runpy.run_path(str(file))
    with pytest.raises(kind) as caught:
        names["run"]()
    assert place_of(caught.value) == f" ({file}, line 4)"


def test_an_error_without_a_line_of_a_user_has_the_last_one() -> None:
    with pytest.raises(UserError) as caught:
        encode_known({"a": object()}, "r")
    ours_alone = caught.value.with_traceback(caught.tb.tb_next)
    assert "trinity/user_code/values.py" in place_of(ours_alone)
