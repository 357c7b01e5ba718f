"""Tests of one `xdist_group` run on one worker, with the pytest and pytest-xdist of the lock."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOOK = "from tests.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems"
GROUPED = """
import pytest

@pytest.mark.parametrize("number", range(6))
@pytest.mark.xdist_group("heavy")
def test_is_one_of_a_group(number, worker_id):
    open(worker_id, "w").close()
"""


def test_a_group_stays_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(HOOK)
    for name in ("first", "second"):
        (tmp_path / f"test_{name}.py").write_text(GROUPED)
    (tmp_path / "test_alone.py").write_text("def test_alone(): pass")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "13 passed" in done.stdout
    assert len(list(tmp_path.glob("gw*"))) == 1
