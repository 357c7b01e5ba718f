"""Collections wait until large libraries are imported, and go on as they were."""

import gc

import pytest

from trinity.runtime.imports import collection_paused


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_pause_and_are_then_as_before(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        with pytest.raises(ImportError), collection_paused():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
