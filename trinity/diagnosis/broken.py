"""Rules about parts that do not work: gone, stopped, or unresponsive."""

from trinity.diagnosis.snapshot import NEVER_ANSWERS, Condition, Part, Reply, Snapshot, Wait
from trinity.diagnosis.verdict import State, Verdict
from trinity.diagnosis.words import PART_OF, duration, log_of, sentence, title

RESTARTS = "the supervisor starts it again by itself, a few times before it ends the run"
WHAT_HELPS = {
    "postgres": "the run goes on by itself when the database is back",
    "nats": "the run goes on by itself when the broker is back",
    "synchronizer": "the run goes on by itself when it is back",
    "buffer": "the run goes on by itself when it is back",
    "trainer": "a new one goes on from the newest checkpoint",
    "explorer": "what it held goes to the next one when its leases run out",
}
RANK_RESTART = "after `synchronizer.sync_timeout` the trainer restarts its ranks"


def find_broken(snapshot: Snapshot) -> Verdict | None:
    """Returns the first part that does not work; later ones may only suffer from it."""
    for part in _suspects(snapshot):
        fault = fault_of(part)
        if fault:
            return Verdict(
                state=State.BROKEN,
                cause=f"{part.name} {part.condition} {part.reply}",
                text=sentence(
                    f"the run waits for {title(part.name)}: {fault}{_sufferer(part, snapshot)}. "
                    f"{_what_to_do(part)}{log_of(part)}"
                ),
            )
    return next(filter(None, map(_stopped_child, snapshot.parts)), None)


def _suspects(snapshot: Snapshot) -> list[Part]:
    """Returns the parts in order; if a process is gone or stopped, silent ones come last."""
    if not any(part.condition in NEVER_ANSWERS for part in snapshot.parts):
        return list(snapshot.parts)
    return sorted(snapshot.parts, key=_is_slow_at_most)


def _is_slow_at_most(part: Part) -> bool:
    return part.condition not in NEVER_ANSWERS and part.reply is Reply.SILENT


def fault_of(part: Part) -> str:
    """Describes the fault of a part; empty if there is none."""
    if part.condition is Condition.GONE:
        return _gone(part.pid, part.last_words)
    if part.condition is Condition.STOPPED:
        return f"its process {part.pid} is stopped"
    if part.died is not None and part.reply is not Reply.ANSWERS:
        return f"{_gone(part.died.pid, part.died.last_words)}; process {part.pid} starts"
    if part.reply is Reply.REFUSES:
        return part.detail or f"{part.address} refuses connections"
    if part.reply is Reply.SILENT and not part.is_busy:
        return part.detail or f"{part.address} takes connections and does not answer"
    return ""


def restarts(snapshot: Snapshot) -> tuple[str, ...]:
    """Describes the parts that were restarted recently, and why; they answer."""
    return tuple(
        sentence(
            f"{title(part.name)} was started again {duration(part.died.seconds_ago)} ago: "
            f"{_gone(part.died.pid, part.died.last_words)}"
        )
        for part in snapshot.parts
        if part.died is not None
    )


def _gone(pid: int, last_words: str) -> str:
    words = f" (its last words: {last_words})" if last_words else ""
    return f"its process {pid} is gone{words}"


def _sufferer(part: Part, snapshot: Snapshot) -> str:
    """Returns the longest wait for the part, as far as it is known."""
    waits = [
        wait
        for member in snapshot.members or ()
        for wait in member.waits
        if PART_OF.get(wait.waits_for, wait.waits_for) == part.name
    ]
    longest: Wait | None = max(waits, key=lambda wait: wait.waited_seconds, default=None)
    if longest is None:
        return ""
    return f", {title(longest.owner)} has waited {duration(longest.waited_seconds)} for it"


def _what_to_do(part: Part) -> str:
    helps = WHAT_HELPS[part.name]
    if part.condition is Condition.STOPPED:
        return f"`kill -CONT {part.pid}` lets it go on, `kill -KILL {part.pid}` has it restarted"
    if part.condition is Condition.FOREIGN:
        return f"Start it again: {helps}"
    if part.condition is Condition.GONE or part.reply is Reply.REFUSES:
        return f"{RESTARTS[:1].upper()}{RESTARTS[1:]}; {helps}"
    return f"If this lasts, `kill -KILL {part.pid}` has it restarted; {helps}"


def _stopped_child(part: Part) -> Verdict | None:
    """Finds a stopped rank or engine of a service that itself answers."""
    for pid, name in part.stopped.items():
        alone = f"; or wait: {RANK_RESTART}" if part.name == "trainer" else ""
        return Verdict(
            state=State.BROKEN,
            cause=f"{part.name} child stopped",
            text=sentence(
                f"the run waits for {title(part.name)}: its process {pid} ({name}) is stopped. "
                f"`kill -CONT {pid}` lets it go on{alone}{log_of(part)}"
            ),
        )
    return None
