"""The check of prose finds what it looks for."""

import pytest

from tests.prose import faults_of_document, faults_of_source


@pytest.mark.parametrize(
    "text",
    [
        '"""What producers are told."""\n',
        'def f() -> None:\n    """Whether it works."""\n',
        '"""Returns a value that nobody reads."""\n',
        "x = 1  # for whoever comes next\n",
    ],
)
def test_an_opening_or_a_word_that_is_banned_is_found(text: str) -> None:
    assert len(list(faults_of_source("a.py", text))) == 1


def test_plain_english_passes() -> None:
    text = '"""Returns the newest version that every explorer has loaded."""\nx = 1  # bytes\n'
    assert list(faults_of_source("a.py", text)) == []


def test_documents_are_checked_outside_of_code() -> None:
    text = "Start it anew.\n\n```\nanew\n```\n`anew`\n"
    assert [fault.line for fault in faults_of_document("a.md", text)] == [1]
