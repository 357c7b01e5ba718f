"""The leases an explorer holds, and the work that goes on under each."""

import asyncio
import logging
from functools import partial

from services.explorer.assignments import Assignment
from services.explorer.buffer_client import BufferClient
from services.explorer.patience import Patience
from trinity.types import StageKey

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
SOON_SECONDS = 1.0


class HeldLeases:
    """Work by assignment. Its lease is renewed for as long as it goes on; a lost lease ends it."""

    def __init__(
        self,
        *,
        key: StageKey,
        lease_seconds: float,
        buffer: BufferClient,
        patience: Patience,
        is_cut_short: bool = False,
    ) -> None:
        """`is_cut_short` asks often whether leases are lost: steps do not wait for all tasks."""
        self._key = key
        usual = lease_seconds / RENEWALS_PER_LEASE
        self._renew_seconds = min(usual, SOON_SECONDS) if is_cut_short else usual
        self._lease_seconds = lease_seconds
        self._buffer = buffer
        self._patience = patience
        self._held: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}

    @property
    def assignments(self) -> list[Assignment]:
        """What is held."""
        return [assignment for assignment, _ in self._held.values()]

    def hold(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        """Keep the lease until `work` is done.

        The same assignment again means that its lease had expired: work under the old one is void.
        """
        if before := self._held.get(assignment.id):
            before[1].cancel()
        self._held[assignment.id] = (assignment, work)
        work.add_done_callback(lambda _: self._let_go(assignment, work))

    async def release(self, assignment: Assignment) -> None:
        """Give work back that is to be tried again at once."""
        await self._patience.persist(
            partial(self._buffer.release, self._key, [assignment]),
            waits_for="buffer",
            purpose="give a lease back",
        )

    def cancel_all(self) -> None:
        """End all work."""
        for _, work in self._held.values():
            work.cancel()

    async def renew(self) -> None:
        """Renew leases and end the work of those that are lost; until cancelled."""
        while True:
            await asyncio.sleep(self._renew_seconds)
            held = self.assignments
            if not held:
                continue
            lost = await self._patience.persist(
                partial(self._buffer.renew, self._key, held, self._lease_seconds),
                waits_for="buffer",
                purpose="renew leases",
            )
            for assignment in held:
                if assignment.id in lost:
                    self._lose(assignment)

    def _lose(self, assignment: Assignment) -> None:
        current = self._held.get(assignment.id)
        if current is not None and current[0] is assignment:
            logger.info("a lease is lost", extra={"assignment": assignment.id})
            current[1].cancel()

    def _let_go(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        if self._held.get(assignment.id) == (assignment, work):
            del self._held[assignment.id]
