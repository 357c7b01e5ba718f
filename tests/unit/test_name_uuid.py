import uuid

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.subtests import as_subtests
from trinity.runtime.uuids import are_canonical, name_uuid

ONE, OTHER = "7b0e5c8e-0000-4000-8000-000000000000", "7b0e5c8e-0000-4000-8000-00000000000f"


@given(st.uuids(), st.text())
def test_it_is_the_id_that_the_standard_library_makes(namespace: uuid.UUID, name: str) -> None:
    name = name.encode(errors="replace").decode()
    assert name_uuid(namespace, name) == str(uuid.uuid5(namespace, name))


@given(st.lists(st.uuids()))
def test_ids_as_the_standard_library_writes_them_are_canonical(ids: list[uuid.UUID]) -> None:
    assert are_canonical([str(one) for one in ids])


@as_subtests(
    "texts",
    [
        [""],
        [ONE, ""],
        [ONE, OTHER.upper()],
        [ONE, f"{{{OTHER}}}"],
        [ONE, OTHER.replace("-", "")],
        [f"{ONE}\n"],
        [f"{ONE},{OTHER}"],
        [f"{ONE},{OTHER}", ""],
        [ONE[:-1], f"{ONE[-1]},{OTHER}"],
    ],
)
def test_one_that_is_not_shows_among_others(texts: list[str]) -> None:
    assert not are_canonical(texts)
