"""GSM8K's own rows become questions with a bare number."""

import json
from pathlib import Path

import pytest

from examples.gsm8k.prepare import convert


def write(path: Path, answer: str) -> Path:
    path.write_text(json.dumps({"question": "How many?", "answer": answer}) + "\n")
    return path


def test_the_number_after_the_mark_is_the_answer_without_thousands_commas(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", "500 + 500 = <<500+500=1000>>1000.\n#### 1,000")
    assert convert(source, tmp_path / "out" / "train.jsonl") == 1
    row = json.loads((tmp_path / "out" / "train.jsonl").read_text())
    assert row == {"question": "How many?", "answer": "1000"}


def test_a_row_without_the_mark_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "train.jsonl", "a thousand")
    with pytest.raises(SystemExit, match=r"train\.jsonl, line 1"):
        convert(source, tmp_path / "out.jsonl")
