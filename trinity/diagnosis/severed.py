"""Rules about parts that work but do not reach one another."""

from trinity.diagnosis.snapshot import Member, Part, Reply, Snapshot, Wait
from trinity.diagnosis.verdict import State, Verdict
from trinity.diagnosis.words import PART_OF, duration, sentence, title

SILENT = ("does not answer", "has not answered", "it says nothing", "cannot be followed")
"""Wording of waits for a part that gives no answer at all."""
CALLED = "{}: "
"""Prefix of call errors: the called part's name."""
UNHEARD_SECONDS = 6.0
"""Three missed heartbeats."""
ADVICE = "look at the network between the two"


def is_for_an_answer(wait: Wait) -> bool:
    """Returns true if the wait is for any answer at all, not for a certain state."""
    called = CALLED.format(wait.waits_for)
    return called in wait.reason or any(word in wait.reason for word in SILENT)


def link_hint(snapshot: Snapshot, wait: Wait) -> str:
    """Returns a hint for a wait for a part that answers others; empty if it does not."""
    part = snapshot.part(PART_OF.get(wait.waits_for, wait.waits_for))
    if part is None or part.reply is not Reply.ANSWERS or not is_for_an_answer(wait):
        return ""
    return f"; {title(part.name)} answers here: {ADVICE}"


def find_unheard(snapshot: Snapshot) -> Verdict | None:
    """Finds a part that the stage needs and the synchronizer does not hear, though both are up."""
    running = snapshot.running
    for part in _unheard(snapshot):
        if running is not None and part.name in running.roles:
            return Verdict(
                state=State.BROKEN,
                cause=f"{part.name} unheard",
                text=sentence(f"the run waits for {title(part.name)}: {_describe(part, snapshot)}"),
            )
    return None


def unheard_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Describes unheard parts, whose waits are not visible now."""
    return tuple(sentence(_describe(part, snapshot)) for part in _unheard(snapshot))


def _unheard(snapshot: Snapshot) -> list[Part]:
    """Returns the unheard parts; if no member is heard at all, the synchronizer was away."""
    heard = [member.silent_seconds for member in snapshot.members or ()]
    if not heard or min(heard) > UNHEARD_SECONDS:
        return []
    return [part for part in snapshot.parts if _silence(part, snapshot) > UNHEARD_SECONDS]


def _describe(part: Part, snapshot: Snapshot) -> str:
    silence = duration(_silence(part, snapshot))
    return (
        f"the synchronizer has not heard of {title(part.name)} for {silence}, "
        f"and both answer here: {ADVICE}"
    )


def _silence(part: Part, snapshot: Snapshot) -> float:
    """Returns the silence of the newest member at this part's address; 0 if there is none."""
    there = [member for member in snapshot.members or () if _is_at(member, part)]
    if part.reply is not Reply.ANSWERS:
        return 0.0
    return min((member.silent_seconds for member in there), default=0.0)


def _is_at(member: Member, part: Part) -> bool:
    return member.role == part.name and member.address == part.address
