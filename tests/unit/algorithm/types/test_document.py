"""The page of all algorithms is what the code says."""

import subprocess
import sys
from pathlib import Path

from tests.unit.subtests import as_subtests
from trinity.algorithm.document import TABLES, render_page
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.types import ALGORITHM_TYPES

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "algorithms.md"


def run(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trinity.algorithm.document", str(page), *options]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_the_page_is_up_to_date_and_has_every_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert render_page(page) == page, "run make docs"
    assert [name for name in TABLES if f"<!-- table: {name} -->" not in page] == []


def test_every_algorithm_and_loss_has_a_row() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [n for n in ALGORITHM_TYPES.builtins if f"\n| `{n}` |" not in page] == []
    assert [n for n in POLICY_LOSSES.builtins if f"\n| [`{n}`](" not in page] == []


@as_subtests("name", TABLES)
def test_a_table_has_rows_of_one_length_that_break_nothing(name: str) -> None:
    rows = list(TABLES[name]())
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}
    for cell in (cell for row in rows for cell in row):
        assert "\n" not in cell
        assert "|" not in cell.replace("\\|", "")


def test_links_lead_to_files() -> None:
    cells = [row[0] for name in ("group advantages", "policy losses") for row in TABLES[name]()]
    links = [cell.split("](")[1].rstrip(")") for cell in cells if "](" in cell]
    assert links
    assert [link for link in links if not (PAGE.parent / link).resolve().is_file()] == []


def test_a_drift_is_found_and_mended_and_what_a_hand_wrote_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n\n<!-- table: kl -->\nold\n<!-- end -->\n\nAlso mine.\n")
    drifted = run(page, "--check")
    assert drifted.returncode == 1 and "run make docs" in drifted.stderr
    assert "old" in page.read_text()
    assert run(page).returncode == 0
    mended = page.read_text()
    assert mended.startswith("# Mine\n\n") and mended.endswith("\n\nAlso mine.\n")
    assert "| `k2` |" in mended and "old\n" not in mended
    assert run(page, "--check").returncode == 0
