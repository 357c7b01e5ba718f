"""The leases that an explorer holds, and the work under each."""

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
    """Renews each assignment's lease while its work runs; cancels work whose lease is lost."""

    def __init__(
        self,
        *,
        key: StageKey,
        lease_seconds: float,
        buffer: BufferClient,
        patience: Patience,
        is_cut_short: bool = False,
    ) -> None:
        """Checks often for lost leases if `is_cut_short`: steps then do not wait for all tasks."""
        self._key = key
        usual = lease_seconds / RENEWALS_PER_LEASE
        self._renew_seconds = min(usual, SOON_SECONDS) if is_cut_short else usual
        self._lease_seconds = lease_seconds
        self._buffer = buffer
        self._patience = patience
        self._held: dict[str, tuple[Assignment, asyncio.Task[None]]] = {}

    @property
    def assignments(self) -> list[Assignment]:
        """The assignments whose leases are held."""
        return [assignment for assignment, _ in self._held.values()]

    def hold(self, assignment: Assignment, work: asyncio.Task[None]) -> None:
        """Keeps the lease until `work` is done.

        The same assignment again means that its lease had expired: its old work is cancelled.
        """
        if before := self._held.get(assignment.id):
            before[1].cancel()
        self._held[assignment.id] = (assignment, work)
        work.add_done_callback(lambda _: self._let_go(assignment, work))

    async def release(self, assignment: Assignment) -> None:
        """Returns work to the buffer, to be retried at once."""
        await self._patience.persist(
            partial(self._buffer.release, self._key, [assignment]),
            waits_for="buffer",
            purpose="give a lease back",
        )

    def cancel_all(self) -> None:
        """Cancels all work."""
        for _, work in self._held.values():
            work.cancel()

    async def renew(self) -> None:
        """Renews leases and cancels the work of those that are lost, until cancelled."""
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
