"""A connection to Postgres with few ways through the event loop and to the database.

The driver goes through the loop for each part of an answer, some sixteen kilobytes: for a batch of
experiences hundreds of times, each of which takes longer than to read the part.
"""

import select
import time
from collections.abc import Generator
from typing import Any, TypeVar, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready, Wait

T = TypeVar("T")
BUSY_SECONDS = 0.005
"""After so long others have their turn, however much there is."""
_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}
_FAILED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class QuickConnection(psycopg.AsyncConnection[Any]):
    """The driver's, which looks whether it has to wait before it waits, and not for BEGIN alone."""

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Complete a dialogue with the database."""
        return await super().wait(_looking_first(gen, self.pgconn.socket), *args, **kwargs)

    def _start_query(self) -> PQGen[None]:
        """Send BEGIN, in a pipeline with the statement that it is for.

        The driver would wait there for an answer to BEGIN alone.
        """
        if self._pipeline is None:
            yield from super()._start_query()
        elif not self._autocommit and self.pgconn.transaction_status == TransactionStatus.IDLE:
            yield from self._exec_command(self._get_tx_start_command())


def _looking_first(gen: PQGen[T], fileno: int) -> Generator[Wait, Ready | int, T]:
    """The same dialogue; what it waits for is looked for here first."""
    looking = select.poll()
    until = time.monotonic() + BUSY_SECONDS
    try:
        wanted = next(gen)
        while True:
            ready: Ready | int = 0
            if time.monotonic() < until:
                ready = _look(looking, fileno, wanted)
            if not ready:
                ready = yield wanted
                until = time.monotonic() + BUSY_SECONDS
            wanted = gen.send(ready)
    except StopIteration as ended:
        return cast("T", ended.value)


def _look(looking: select.poll, fileno: int, wanted: Wait) -> int:
    looking.register(fileno, _EVENTS[wanted])
    events = dict(looking.poll(0)).get(fileno, 0)
    ready = Ready.R if events & (select.POLLIN | _FAILED) else 0
    return ready | (Ready.W if events & (select.POLLOUT | _FAILED) else 0)
