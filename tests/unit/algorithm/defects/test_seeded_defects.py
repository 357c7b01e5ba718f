"""Each seeded defect is told from sound code by a test of the ordinary suite."""

import pytest

from tests.unit.algorithm.defects.seeded import DEFECTS, PAGE, with_table
from tests.unit.subtests import as_subtests


@as_subtests("name", DEFECTS)
def test_a_defect_is_found_and_sound_code_is_not(name: str) -> None:
    defect = DEFECTS[name]
    defect.found_by()
    with defect.injected(), pytest.raises(AssertionError):
        defect.found_by()
    defect.found_by()


def test_the_page_lists_them() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run python -m tests.unit.algorithm.defects.seeded"
    assert all(f"| {name} | " in page for name in DEFECTS)
    assert len(DEFECTS) >= 15
