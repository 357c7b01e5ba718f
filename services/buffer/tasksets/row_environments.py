"""Reads the rows of an environment of a hub, from the hub's process."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from services.buffer.tasksets.row_sources import RowSource
from trinity.errors import UserError
from trinity.user_code.hubs.place import HubPlace
from trinity.user_code.hubs.process import HubFailed, HubProcess

ROWS_AT_ONCE = 500


def read_environment(source: RowSource) -> Iterator[object]:
    """Yields the rows, with only one chunk in memory.

    Raises: UserError when the hub cannot load them, or fails.
    """
    place = HubPlace.parse(source.place)
    assert place is not None
    with asyncio.Runner() as runner:
        try:
            hub = runner.run(HubProcess.start(place, Path(source.python)))
            try:
                while rows := runner.run(hub.call("rows", count=ROWS_AT_ONCE)):
                    yield from rows
            finally:
                runner.run(hub.kill())
        except HubFailed as error:
            raise UserError(str(error)) from error
