"""Who waits for whom, followed from the trainer's next step to the one that everybody waits for."""

from dataclasses import dataclass

from trinity.diagnosis.severed import is_for_an_answer
from trinity.diagnosis.snapshot import Member, Snapshot, Wait

LIVE_SECONDS = 10.0
"""A member silent for longer says nothing about now."""
ROLES = ("trainer", "buffer", "explorer")
OUTSIDE = {"wait for rewards that come later": "rewards", "waits until the queue": "tasks"}
"""What comes from people or programs outside of the run, by the buffer's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Waits, each for the owner of the next; the last one is for somebody who waits for nobody."""

    links: tuple[Wait, ...]
    end: str
    """Who or what that is."""

    @property
    def root(self) -> Wait | None:
        """The wait that all others wait for."""
        return self.links[-1] if self.links else None


def follow(snapshot: Snapshot) -> Chain:
    """From whoever has to act next: the trainer, or without one at work the explorer."""
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
    """Members of this role that work on the running experiment, or on none; one at an address."""
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
    """The longest wait; one for work or for a batch says less than any other."""
    waits = [wait for member in members for wait in member.waits]
    others = [wait for wait in waits if wait.waits_for != "buffer" or is_for_an_answer(wait)]
    return max(others or waits, key=lambda wait: wait.waited_seconds, default=None)


def _next(snapshot: Snapshot, wait: Wait) -> str:
    """Who has to act so that this wait ends."""
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
    """An explorer with results to be committed waits for the buffer itself."""
    return "to be committed" not in wait.reason
