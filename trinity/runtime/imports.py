"""Imports of large libraries."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pauses the collection of garbage while large libraries are imported.

    Their objects stay alive, and scanning them repeatedly takes up to a quarter of the import. For
    a few seconds garbage in cycles stays too.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
