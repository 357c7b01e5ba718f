"""A psycopg connection with fewer event loop and network round trips.

The driver passes through the event loop for each part of an answer, some 16 KB: hundreds of times
for a batch of experiences, and each pass takes longer than reading the part.
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
"""After this time other tasks get a turn, however much there is to read."""
_EVENTS = {Wait.R: select.POLLIN, Wait.W: select.POLLOUT, Wait.RW: select.POLLIN | select.POLLOUT}
_FAILED = select.POLLERR | select.POLLHUP | select.POLLNVAL


class QuickConnection(psycopg.AsyncConnection[Any]):
    """A connection that polls its socket before it waits, and does not wait for BEGIN alone."""

    async def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        """Completes a protocol exchange with the database."""
        return await super().wait(_looking_first(gen, self.pgconn.socket), *args, **kwargs)

    def _start_query(self) -> PQGen[None]:
        """Sends BEGIN in a pipeline with the statement that it is for.

        The driver would wait for the answer to BEGIN alone.
        """
        if self._pipeline is None:
            yield from super()._start_query()
        elif not self._autocommit and self.pgconn.transaction_status == TransactionStatus.IDLE:
            yield from self._exec_command(self._get_tx_start_command())


def _looking_first(gen: PQGen[T], fileno: int) -> Generator[Wait, Ready | int, T]:
    """Drives the same exchange, but polls the socket here before yielding to the event loop."""
    poller = select.poll()
    until = time.monotonic() + BUSY_SECONDS
    try:
        wanted = next(gen)
        while True:
            ready: Ready | int = 0
            if time.monotonic() < until:
                ready = _look(poller, fileno, wanted)
            if not ready:
                ready = yield wanted
                until = time.monotonic() + BUSY_SECONDS
            wanted = gen.send(ready)
    except StopIteration as ended:
        return cast("T", ended.value)


def _look(poller: select.poll, fileno: int, wanted: Wait) -> int:
    poller.register(fileno, _EVENTS[wanted])
    events = dict(poller.poll(0)).get(fileno, 0)
    ready = Ready.R if events & (select.POLLIN | _FAILED) else 0
    return ready | (Ready.W if events & (select.POLLOUT | _FAILED) else 0)
