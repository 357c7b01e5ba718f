"""Rules about parts that work, and do not reach one another."""

from trinity.diagnosis.snapshot import Member, Part, Reply, Snapshot, Wait
from trinity.diagnosis.verdict import State, Verdict
from trinity.diagnosis.words import PART_OF, duration, sentence, title

SILENT = ("does not answer", "has not answered", "it says nothing", "cannot be followed")
"""What waits say of somebody who gives no answer at all."""
CALLED = "{}: "
"""Errors of calls begin with who was called."""
UNHEARD_SECONDS = 6.0
"""Three signs of life that did not come."""
ADVICE = "look at the network between the two"


def is_for_an_answer(wait: Wait) -> bool:
    """Whether somebody gets no answer, rather than an answer to wait."""
    called = CALLED.format(wait.waits_for)
    return called in wait.reason or any(word in wait.reason for word in SILENT)


def link_hint(snapshot: Snapshot, wait: Wait) -> str:
    """What to say beside a wait for somebody who answers to others; empty when none does."""
    part = snapshot.part(PART_OF.get(wait.waits_for, wait.waits_for))
    if part is None or part.reply is not Reply.ANSWERS or not is_for_an_answer(wait):
        return ""
    return f"; {title(part.name)} answers here: {ADVICE}"


def find_unheard(snapshot: Snapshot) -> Verdict | None:
    """Who the stage needs and the synchronizer does not hear of, though both answer here."""
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
    """The same of parts whose waits nobody gets to see now."""
    return tuple(sentence(_describe(part, snapshot)) for part in _unheard(snapshot))


def _unheard(snapshot: Snapshot) -> list[Part]:
    """Where nobody at all is heard of, the synchronizer itself was away."""
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
    """Since when the newest member at this part's address is silent; 0 for who has none."""
    there = [member for member in snapshot.members or () if _is_at(member, part)]
    if part.reply is not Reply.ANSWERS:
        return 0.0
    return min((member.silent_seconds for member in there), default=0.0)


def _is_at(member: Member, part: Part) -> bool:
    return member.role == part.name and member.address == part.address
