"""docs/what-is-trained.md shows the rows that the code makes."""

import re
from pathlib import Path

import pytest

from tests.support.what_is_trained import page_with_rows, rows, tokenizer_once
from tests.unit.source_names import ROOT

PAGE = ROOT / "docs" / "what-is-trained.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


async def test_the_page_shows_what_the_code_makes(page: str) -> None:
    made = await rows()
    assert page_with_rows(page, made) == page
    assert page_with_rows(page, made.replace("[[5", "5[[", 1)) != page  # another mask is seen


def block(page: str, title: str) -> list[str]:
    found = re.search(rf"^{re.escape(title)}\n((?:  .*\n)+)", page, re.MULTILINE)
    assert found is not None, title
    return found[1].splitlines()


def trained(line: str) -> list[str]:
    return re.findall(r"\[\[(.*?)\]\]", line)


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("one turn, unit: run", [["5<end>"], ["6<end>"]]),
        ("two turns, unit: run", [["4<end>", "5<end>"], ["6<end>"]]),
        ("turns at two temperatures, unit: run", [["4<end>"], ["5<end>"], ["6<end>"]]),
        ("an agent, unit: run", [["so far: 2<end>"], ["5<end>"], ["6<end>"]]),
    ],
)
def test_answers_and_their_ends_are_trained_and_nothing_else(
    page: str, title: str, expected: list[list[str]]
) -> None:
    assert [trained(line) for line in block(page, title)] == expected


def test_a_call_of_a_tool_is_trained_and_its_result_is_not(page: str) -> None:
    first, *_ = block(page, "a tool, unit: run")
    assert "it is 5<end>" in first.rpartition("[[")[2]
    assert "[[[add]<end>]]" in first
    assert "<tool>5<end>" in first and "[[<tool>" not in first


def test_a_run_of_two_samples_has_the_advantage_of_one_run(page: str) -> None:
    title = "a template that drops earlier thoughts, unit: {}"
    shown = {
        unit: re.findall(r"advantage (\S+),", "\n".join(block(page, title.format(unit))))
        for unit in ("run", "sample")
    }
    assert shown == {"run": ["+0.71", "+0.71", "-0.71"], "sample": ["+0.58", "+0.58", "-1.15"]}


def test_a_row_of_data_ends_whatever_its_template_writes(page: str) -> None:
    last, every, endless = block(page, "rows of sft, without advantages")
    assert [len(trained(line)) for line in (last, every, endless)] == [1, 2, 1]
    assert all(trained(line)[-1].endswith("<end>") for line in (last, every, endless))
    assert tokenizer_once().eos_token == "<end>"
    assert Path(PAGE).is_file()
