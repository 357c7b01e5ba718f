"""The session of one attempt: which turn answers a request, and which of them are stored."""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.types import CommitOutcome, ResultReport
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.errors import RpcError
from trinity.runtime.rpc.quotas import REFUSED
from trinity.runtime.session_ids import turn_id
from trinity.workflows.answers import TurnNode, TurnTree, place_in
from trinity.workflows.turn_codec import decode_turn

logger = logging.getLogger(__name__)
COMMIT_SECONDS = 30.0
"""Time for which an answer waits to be stored before its client is told to ask again."""
NOT_STORED = "the answer is not stored yet: send the same request again"
Seeds = Callable[[bytes, bytes, int], int]
"""Returns the seed of a turn by its parent's place, its prompt and its ordinal."""
SlotKey = tuple[bytes, bytes]
"""The parent's place and the prompt."""


class TurnStore(Protocol):
    """Stores the turns of a session where they outlast this process."""

    async def load(self) -> list[SessionTurn]:
        """Returns the stored turns, parents first.

        Raises: RpcError.
        """
        ...

    def store(self, turn: TurnNode) -> "asyncio.Future[ResultReport]":
        """Sends a turn; the report says whether it is stored."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """A place in the tree for one answer, from before it is sampled."""

    parent: TurnNode | None
    prompt_sha256: bytes
    ordinal: int
    id: str
    is_held: bool = False
    """True while a request is being answered with it."""
    is_begun: bool = False
    """True once a request fills it."""
    number: int | None = None
    """The number of the first call of this attempt that it answered."""
    is_given: bool = False
    """True once a client of this attempt has received it."""
    turn: TurnNode | None = None
    """The turn, once it is stored."""
    reason: str = NOT_STORED
    """Why there is none."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is known whether there will be a turn."""

    @property
    def key(self) -> SlotKey:
        """Slots with the same key answer the same request."""
        return place_in(self.parent), self.prompt_sha256


class Session:
    """Answers of one attempt at a run, each of which is stored before its client gets all of it.

    The same request after the same answer gets the next answer that this attempt has not been given
    yet: one that is stored, or is on its way, or a new one. So a client's retry finds the answer,
    and an agent that is started again gets what its predecessor got. Without a store turns last as
    long as this object.
    """

    def __init__(
        self,
        *,
        session_id: str = "",
        store: TurnStore | None = None,
        seed_of_turn: Seeds | None = None,
    ) -> None:
        self._id = session_id or str(uuid.uuid4())
        self.seed_of_turn = seed_of_turn
        """None where the seeds follow from the numbers of the calls."""
        self._store = store
        self._slots: dict[SlotKey, list[Slot]] = {}
        self._given: set[str] = set()
        """Turns that clients have received, of those that were unloaded."""
        self._loading = asyncio.Lock()
        self._is_loaded = store is None
        self.tree = TurnTree()

    async def load(self) -> None:
        """Reads what earlier attempts have left, once, and again after `unload`.

        Raises: InvalidApiRequest when the buffer does not give it.
        """
        async with self._loading:
            if self._is_loaded or self._store is None:
                return
            try:
                for message in await self._store.load():
                    parent = self.tree.turns.get(message.parent_id)
                    if parent is not None or not message.parent_id:  # else before it is no content
                        self._take_over(message, parent)
            except RpcError as error:
                raise unavailable(f"the turns of this run cannot be read: {error}") from error
            self._is_loaded = True

    def unload(self) -> None:
        """Lets go of the turns until the next request, unless some are on their way."""
        slots = [slot for own in self._slots.values() for slot in own]
        if self._store is not None and all(slot.ended.is_set() for slot in slots):
            self._given |= {slot.id for slot in slots if slot.is_given}
            for turn in self.tree.turns.values():
                turn.answer.origin = None  # refers back, so would be freed much later
            self._slots, self.tree, self._is_loaded = {}, TurnTree(), False

    def _take_over(self, message: SessionTurn, parent: TurnNode | None) -> None:
        """Adds a stored turn; one whose content was removed only keeps its place from others."""
        turn = decode_turn(message, parent) if message.payload else None
        slot = Slot(
            parent=parent,
            prompt_sha256=message.prompt_sha256,
            ordinal=message.ordinal,
            id=message.id,
            is_begun=True,
            # A rewarded one was received.
            is_given=turn is None or message.is_rewarded or message.id in self._given,
            turn=turn,
        )
        slot.ended.set()
        self._slots.setdefault(slot.key, []).append(slot)
        if turn is not None:
            self.tree.add(turn)

    def claim(self, parent: TurnNode | None, prompt_sha256: bytes, count: int) -> list[Slot]:
        """Returns the slots that answer a request, in order; those not begun are to be filled."""
        slots = self._slots.setdefault((place_in(parent), prompt_sha256), [])
        free = [slot for slot in slots if not slot.is_held and not slot.is_given]
        claimed = sorted(free, key=lambda slot: slot.ordinal)[:count]
        while len(claimed) < count:
            claimed.append(self._new_slot(slots, parent, prompt_sha256))
        for slot in claimed:
            slot.is_held = True
        return claimed

    def _new_slot(self, slots: list[Slot], parent: TurnNode | None, prompt_sha256: bytes) -> Slot:
        taken = {slot.ordinal for slot in slots}
        ordinal = next(number for number in range(len(taken) + 1) if number not in taken)
        own_id = turn_id(self._id, "" if parent is None else parent.id, prompt_sha256, ordinal)
        slot = Slot(parent=parent, prompt_sha256=prompt_sha256, ordinal=ordinal, id=own_id)
        slots.append(slot)
        return slot

    def fill(self, slot: Slot, turn: TurnNode) -> None:
        """Sends the turn of a new slot, which ends when it is stored or refused."""
        if self._store is None:
            self._end(slot, turn)
            return
        report = self._store.store(turn)
        report.add_done_callback(lambda done: self._on_report(slot, turn, done))

    def _on_report(self, slot: Slot, turn: TurnNode, done: "asyncio.Future[ResultReport]") -> None:
        report = None if done.cancelled() else done.result()
        if report is not None and report.outcome is CommitOutcome.COMMITTED:
            self._end(slot, turn)
            return
        slot.reason = report.reason if report is not None and report.reason else NOT_STORED
        logger.warning("a turn was not stored", extra={"turn": slot.id, "reason": slot.reason})
        self.drop(slot)

    def _end(self, slot: Slot, turn: TurnNode) -> None:
        slot.turn = turn
        self.tree.add(turn)
        slot.ended.set()

    def drop(self, slot: Slot) -> None:
        """Removes a slot that gets no turn."""
        if slot in (slots := self._slots.get(slot.key, [])):
            slots.remove(slot)
        slot.ended.set()


async def turn_in(slot: Slot) -> TurnNode:
    """Waits for the turn of a slot.

    Raises: InvalidApiRequest when it is not stored, or not in time: a retry may find it.
    """
    try:
        async with asyncio.timeout(COMMIT_SECONDS):
            await slot.ended.wait()
    except TimeoutError as error:
        raise unavailable(NOT_STORED) from error
    if slot.turn is None:
        raise unavailable(slot.reason)
    return slot.turn


def unavailable(text: str) -> InvalidApiRequest:
    """Returns the refusal of a request that may be sent again."""
    if text.startswith(REFUSED):
        kind, code = "rate_limit_error", "rate_limit_exceeded"
        return InvalidApiRequest(text, status=429, kind=kind, code=code)
    return InvalidApiRequest(text, status=503, kind="server_error", code="not_stored")
