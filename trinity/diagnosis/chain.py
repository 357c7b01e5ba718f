"""The chain of waits, from the trainer's next step to its root cause."""

from dataclasses import dataclass

from trinity.diagnosis.severed import is_for_an_answer
from trinity.diagnosis.snapshot import Member, Snapshot, Wait

LIVE_SECONDS = 10.0
"""A member silent for longer says nothing about the current state."""
ROLES = ("trainer", "buffer", "explorer")
OUTSIDE = {"wait for rewards that come later": "rewards", "waits until the queue": "tasks"}
"""Causes outside of the run (people or programs), by the buffer's wording."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Waits, each for the owner of the next; the target of the last one does not wait."""

    links: tuple[Wait, ...]
    end: str
    """The target of the last wait."""

    @property
    def root(self) -> Wait | None:
        """The wait that all others depend on."""
        return self.links[-1] if self.links else None


def follow(snapshot: Snapshot) -> Chain:
    """Follows the waits from the trainer, or from the explorer if no trainer is at work."""
    links: list[Wait] = []
    seen: set[str] = set()
    owner = "trainer" if _at_work(snapshot, "trainer") else "explorer"
    while owner in ROLES and owner not in seen:
        seen.add(owner)
        wait = _decisive(live_members(snapshot, owner))
        if wait is None:
            break
        links.append(wait)
        owner = _next(snapshot, wait)
    return Chain(links=tuple(links), end=owner)


def live_members(snapshot: Snapshot, role: str) -> list[Member]:
    """Returns the role's live members on the running experiment or on none, one per address."""
    running = snapshot.running
    own = (running.id if running else "", "")
    newest: dict[str, Member] = {}
    for member in snapshot.members or ():
        if member.role != role or member.silent_seconds > LIVE_SECONDS:
            continue
        known = newest.get(member.address)
        if known is None or member.silent_seconds < known.silent_seconds:
            newest[member.address] = member
    return [member for member in newest.values() if member.experiment_id in own]


def _at_work(snapshot: Snapshot, role: str) -> bool:
    return any(member.experiment_id for member in live_members(snapshot, role))


def _decisive(members: list[Member]) -> Wait | None:
    """Returns the longest wait; waits for work or for a batch count only if there is no other."""
    waits = [wait for member in members for wait in member.waits]
    others = [wait for wait in waits if wait.waits_for != "buffer" or is_for_an_answer(wait)]
    return max(others or waits, key=lambda wait: wait.waited_seconds, default=None)


def _next(snapshot: Snapshot, wait: Wait) -> str:
    """Returns the part that must act so that this wait ends."""
    for words, what in OUTSIDE.items():
        if words in wait.reason:
            return what
    if wait.waits_for != "buffer" or is_for_an_answer(wait):
        return wait.waits_for
    if _decisive(live_members(snapshot, "buffer")) is not None:
        return "buffer"
    running = snapshot.running
    if wait.owner == "trainer":
        return "explorer" if running is not None and "explorer" in running.roles else "buffer"
    return "trainer" if _at_work(snapshot, "trainer") and _is_idle(wait) else "buffer"


def _is_idle(wait: Wait) -> bool:
    """Returns false for an explorer with uncommitted results: it waits for the buffer itself."""
    return "to be committed" not in wait.reason
