import uuid

from hypothesis import given
from hypothesis import strategies as st

from trinity.name_uuid import name_uuid


@given(st.uuids(), st.text())
def test_it_is_the_id_that_the_standard_library_makes(namespace: uuid.UUID, name: str) -> None:
    name = name.encode(errors="replace").decode()
    assert name_uuid(namespace, name) == str(uuid.uuid5(namespace, name))
