"""Rules about parts that are alive, have work, and are slow to answer."""

from trinity.diagnosis.snapshot import Part, Snapshot
from trinity.diagnosis.verdict import State, Verdict
from trinity.diagnosis.words import log_of, sentence, title


def find_busy(snapshot: Snapshot, *names: str) -> Verdict | None:
    """Returns a verdict on the first busy one of these parts; it may answer soon."""
    for part in snapshot.parts:
        if part.is_busy and part.name in names:
            return Verdict(
                state=State.HELD,
                cause=f"{part.name} busy",
                text=f"{_describe(part)} {sentence(_what_to_do(part) + log_of(part))}",
            )
    return None


def busy_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Describes busy parts that do not hold up the run now."""
    return tuple(_describe(part) for part in snapshot.parts if part.is_busy)


def _describe(part: Part) -> str:
    demand = part.demand
    return sentence(
        f"{title(part.name)} lives and is slow to answer: in the {part.asked_seconds:.0f} s that "
        f"it was given, its process {part.pid} worked for {demand.worked_seconds:.1f} s and waited "
        f"for a processor for {demand.queued_seconds:.1f} s"
    )


def _what_to_do(part: Part) -> str:
    if part.demand.is_starved:
        return "there is more work than processors here: ask again in a moment, or end other work"
    return f"ask again in a moment; if this lasts, `kill -KILL {part.pid}` has it restarted"
