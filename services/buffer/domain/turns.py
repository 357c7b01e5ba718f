"""Turns of sessions, and the decision on each: a place of the tree is filled once."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from services.buffer.domain.results import AssignmentView, lost_media
from services.buffer.domain.stage import OPEN_ASSIGNMENT
from trinity.types import StageKey

NO_CLIENTS: Mapping[str, str] = {}
FENCED = "the lease under which it was made is over, and another explorer may go on with its run"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedTurn:
    """One answer of a session: the fields that the buffer uses, and the opaque payload."""

    key: StageKey
    session_id: str
    assignment_id: str | None
    """None for a turn of a client's session."""
    run: int
    lease_token: str
    turn_id: str
    parent_id: str | None
    prompt_sha256: bytes
    ordinal: int
    content_hash: bytes
    body: bytes
    producer: str
    sequence: int
    media: frozenset[bytes] = frozenset()
    """Hashes of the images of its messages."""
    call_id: str | None = None
    """The first answer of the client's call."""
    refusal: str = ""
    """The reason why its tenant has no room for it; of a client's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnDecision:
    """The decision on a turn: to be stored, stored before, or refused with a reason."""

    turn: ReceivedTurn
    is_new: bool = False
    reason: str = ""


def decide_turns(
    turns: Sequence[ReceivedTurn],
    *,
    views: Mapping[str, AssignmentView],
    known: Mapping[str, bytes],
    stage_is_open: bool,
    media: Set[bytes] = frozenset(),
    clients: Mapping[str, str] = NO_CLIENTS,
) -> list[TurnDecision]:
    """Decides on turns in their order; `known` has the hashes of stored turns and parents by id.

    `clients` has the tokens of clients' sessions, which are in the place of the lease's.
    A stored turn that comes again is stored; all others need the current lease. The caller makes
    sure that no lease is granted meanwhile, so an explorer that holds one finds all turns that will
    ever precede its own. `media` are the hashes of images that are stored.
    """
    hashes = dict(known)
    decisions = []
    for turn in turns:
        if turn.turn_id in hashes:
            is_same = hashes[turn.turn_id] == turn.content_hash
            reason = "" if is_same else "another answer was stored in its place"
            decisions.append(TurnDecision(turn=turn, reason=reason))
            continue
        if turn.assignment_id is None:
            is_held = stage_is_open and clients.get(turn.session_id) == turn.lease_token
            reason = turn.refusal if is_held else FENCED
        else:
            reason = _refusal(turn, views.get(turn.assignment_id), stage_is_open=stage_is_open)
        if not reason and turn.parent_id is not None and turn.parent_id not in hashes:
            reason = f"its parent {turn.parent_id} is not stored"
        if not reason and (lost := turn.media - media):
            reason = lost_media(lost)
        if not reason:
            hashes[turn.turn_id] = turn.content_hash
        decisions.append(TurnDecision(turn=turn, is_new=not reason, reason=reason))
    return decisions


def _refusal(turn: ReceivedTurn, view: AssignmentView | None, *, stage_is_open: bool) -> str:
    if view is None or turn.run not in view.runs:
        return f"there is no run {turn.run} of an assignment {turn.assignment_id}"
    is_over = view.state not in OPEN_ASSIGNMENT or not stage_is_open
    if is_over or view.lease_token != turn.lease_token:
        return FENCED
    return ""
