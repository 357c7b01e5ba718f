"""The page says what the converter does."""

import subprocess
import sys
from pathlib import Path

from trinity.verl.document import TABLES, render_page, verl_table

PAGE = Path("docs/align-with-verl.md")


def test_the_page_is_what_the_code_says() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert render_page(text) == text
    assert text.count("<!-- table: ") == len(TABLES) + 1  # and the defaults by version


def test_a_page_that_differs_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text().replace("`buffer.batch_size`", "`buffer.other`"))
    command = [sys.executable, "-m", "trinity.verl.document", str(page), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "differs from the code: run make docs" in done.stderr


def test_every_row_is_in_a_table() -> None:
    assert verl_table("data").count("\n") == len(TABLES["data"]) + 1
