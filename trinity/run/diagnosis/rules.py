"""Rules of a diagnosis: broken, busy and unreachable components, and chains of waits."""

from dataclasses import dataclass
from enum import StrEnum

from trinity.run.diagnosis.snapshot import (
    NEVER_ANSWERS,
    ComponentSnapshot,
    ProbeState,
    ProcessState,
    SystemSnapshot,
)
from trinity.run.output import format_duration
from trinity.run.state import MemberReport, WaitReport
from trinity.runtime.loops import LoopKind
from trinity.runtime.members import WaitKind

TITLES = {
    "postgres": "Postgres",
    "nats": "the broker (NATS)",
    "ranks": "the ranks",
    "workflow": "a workflow",
    "engine": "the engine",
    "files": "weights files",
    "reader": "the reader of a taskset",
    "advantage function": "the advantage function",
    "another trainer": "another trainer",
    "rewards": "rewards from outside",
    "tasks": "tasks from outside",
    "device": "the shared GPU",
    "upkeep": "its upkeep",
    "data path": "its data path",
}
PART_OF = {"database": "postgres", "broker": "nats"}
"""Parts by the names that waits use."""
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
UNREACHABLE_SECONDS = 6.0
"""Three missed heartbeats."""
ADVICE = "look at the network between the two"
LIVE_SECONDS = 10.0
"""Members silent for longer are ignored, as their state is out of date."""
LOOPS = tuple(LoopKind)
ROLES = ("trainer", "buffer", "explorer")
OUTSIDE = (WaitKind.REWARDS, WaitKind.TASKS)
"""What people or programs outside of the run have to give."""


class DiagnosisState(StrEnum):
    """The state of a run."""

    WORKING = "working"
    HELD = "held"
    """Something has to end or to be fixed before it continues."""
    BROKEN = "broken"
    """The same, because a part does not work."""
    OVER = "over"
    """It has failed or was cancelled."""
    IDLE = "idle"
    """There is no work to do."""


HEALTHY = (DiagnosisState.WORKING, DiagnosisState.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One cause, named in a sentence or two."""

    state: DiagnosisState
    cause: str
    """Distinguishes causes, whatever durations their sentences mention."""
    text: str
    owner: str = ""
    """The waiting part, if it waits for its own slow work."""
    notes: tuple[str, ...] = ()
    """Facts worth knowing that do not hold up the run."""

    @property
    def is_healthy(self) -> bool:
        """True if no action is needed."""
        return self.state in HEALTHY


def display_name(name: str) -> str:
    """Returns `the buffer`, `Postgres`."""
    return TITLES.get(PART_OF.get(name, name), f"the {name}")


def log_of(part: ComponentSnapshot | None) -> str:
    """Returns the log's path as the end of a sentence."""
    return f"; its log is {part.log_file}" if part is not None and part.log_file else ""


def as_sentence(text: str) -> str:
    """Capitalizes the text and ends it with a full stop."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def find_broken(snapshot: SystemSnapshot) -> Diagnosis | None:
    """Returns the first part that does not work; later ones may only suffer from it."""
    for part in _suspects(snapshot):
        fault = fault_of(part)
        if fault:
            return Diagnosis(
                state=DiagnosisState.BROKEN,
                cause=f"{part.name} {part.condition} {part.reply}",
                text=as_sentence(
                    f"the run waits for {display_name(part.name)}: {fault}"
                    f"{_sufferer(part, snapshot)}. {_advice_for_broken(part)}{log_of(part)}"
                ),
            )
    return next(filter(None, map(_stopped_child, snapshot.parts)), None)


def _suspects(snapshot: SystemSnapshot) -> list[ComponentSnapshot]:
    """Returns the parts in order; if a process is gone or stopped, silent ones come last."""
    if not any(part.condition in NEVER_ANSWERS for part in snapshot.parts):
        return list(snapshot.parts)
    return sorted(
        snapshot.parts,
        key=lambda part: part.condition not in NEVER_ANSWERS and part.reply is ProbeState.SILENT,
    )


def fault_of(part: ComponentSnapshot) -> str:
    """Describes the fault of a part; empty for a part without a fault."""
    if part.condition is ProcessState.GONE:
        return _exit_text(part.pid, part.last_log_line)
    if part.condition is ProcessState.STOPPED:
        return f"its process {part.pid} is stopped"
    if part.died is not None and part.reply is not ProbeState.ANSWERS:
        return f"{_exit_text(part.died.pid, part.died.last_log_line)}; process {part.pid} starts"
    if part.reply is ProbeState.REFUSES:
        return part.detail or f"{part.address} refuses connections"
    if part.reply is ProbeState.SILENT and not part.is_busy:
        return part.detail or f"{part.address} takes connections and does not answer"
    return ""


def restart_notes(snapshot: SystemSnapshot) -> tuple[str, ...]:
    """Describes the parts that were restarted recently, and why; they answer."""
    return tuple(
        as_sentence(
            f"{display_name(part.name)} was started again "
            f"{format_duration(part.died.seconds_ago)} ago: "
            f"{_exit_text(part.died.pid, part.died.last_log_line)}"
        )
        for part in snapshot.parts
        if part.died is not None
    )


def _exit_text(pid: int, last_log_line: str) -> str:
    words = f" (its last words: {last_log_line})" if last_log_line else ""
    return f"its process {pid} is gone{words}"


def _sufferer(part: ComponentSnapshot, snapshot: SystemSnapshot) -> str:
    """Returns the longest wait for the part, as far as it is known."""
    waits = [
        wait
        for member in snapshot.members or ()
        for wait in member.waits
        if PART_OF.get(wait.waits_for, wait.waits_for) == part.name
    ]
    longest: WaitReport | None = max(waits, key=lambda wait: wait.waited_seconds, default=None)
    if longest is None:
        return ""
    waited = format_duration(longest.waited_seconds)
    return f", {display_name(longest.owner)} has waited {waited} for it"


def _advice_for_broken(part: ComponentSnapshot) -> str:
    helps = WHAT_HELPS[part.name]
    if part.condition is ProcessState.STOPPED:
        return f"`kill -CONT {part.pid}` lets it go on, `kill -KILL {part.pid}` has it restarted"
    if part.condition is ProcessState.FOREIGN:
        return f"Start it again: {helps}"
    if part.condition is ProcessState.GONE or part.reply is ProbeState.REFUSES:
        return f"{RESTARTS[:1].upper()}{RESTARTS[1:]}; {helps}"
    return f"If this lasts, `kill -KILL {part.pid}` has it restarted; {helps}"


def _stopped_child(part: ComponentSnapshot) -> Diagnosis | None:
    """Finds a stopped rank or engine of a service that itself answers."""
    for pid, name in part.stopped.items():
        alone = f"; or wait: {RANK_RESTART}" if part.name == "trainer" else ""
        return Diagnosis(
            state=DiagnosisState.BROKEN,
            cause=f"{part.name} child stopped",
            text=as_sentence(
                f"the run waits for {display_name(part.name)}: its process {pid} ({name}) is "
                f"stopped. `kill -CONT {pid}` lets it go on{alone}{log_of(part)}"
            ),
        )
    return None


def find_busy(snapshot: SystemSnapshot, *names: str) -> Diagnosis | None:
    """Returns a verdict on the first busy one of these parts; it may answer soon."""
    for part in snapshot.parts:
        if part.is_busy and part.name in names:
            return Diagnosis(
                state=DiagnosisState.HELD,
                cause=f"{part.name} busy",
                text=f"{_describe(part)} {as_sentence(_advice_for_busy(part) + log_of(part))}",
            )
    return None


def busy_notes(snapshot: SystemSnapshot) -> tuple[str, ...]:
    """Describes busy parts that do not hold up the run now."""
    return tuple(_describe(part) for part in snapshot.parts if part.is_busy)


def _describe(part: ComponentSnapshot) -> str:
    demand = part.demand
    return as_sentence(
        f"{display_name(part.name)} lives and is slow to answer: in the {part.asked_seconds:.0f} s "
        f"that it was given, its process {part.pid} worked for {demand.worked_seconds:.1f} s and "
        f"waited for a processor for {demand.queued_seconds:.1f} s"
    )


def _advice_for_busy(part: ComponentSnapshot) -> str:
    if part.demand.is_starved:
        return "there is more work than processors here: ask again in a moment, or end other work"
    return f"ask again in a moment; if this lasts, `kill -KILL {part.pid}` has it restarted"


def link_hint(snapshot: SystemSnapshot, wait: WaitReport) -> str:
    """Returns a hint for a wait for a part that answers others; empty if it does not."""
    part = snapshot.part(PART_OF.get(wait.waits_for, wait.waits_for))
    if part is None or part.reply is not ProbeState.ANSWERS or wait.kind != WaitKind.NO_ANSWER:
        return ""
    return f"; {display_name(part.name)} answers here: {ADVICE}"


def find_unreachable(snapshot: SystemSnapshot) -> Diagnosis | None:
    """Finds a part that the stage needs and the synchronizer does not hear, though both are up."""
    running = snapshot.running
    for part in _unreachable(snapshot):
        if running is not None and part.name in running.open_roles:
            return Diagnosis(
                state=DiagnosisState.BROKEN,
                cause=f"{part.name} unheard",
                text=as_sentence(
                    f"the run waits for {display_name(part.name)}: {_describe_cut(part, snapshot)}"
                ),
            )
    return None


def unreachable_notes(snapshot: SystemSnapshot) -> tuple[str, ...]:
    """Describes unheard parts, whose waits are not visible now."""
    return tuple(as_sentence(_describe_cut(part, snapshot)) for part in _unreachable(snapshot))


def _unreachable(snapshot: SystemSnapshot) -> list[ComponentSnapshot]:
    """Returns the unheard parts; if no member is heard at all, the synchronizer was away."""
    heard = [member.silent_seconds for member in snapshot.members or ()]
    if not heard or min(heard) > UNREACHABLE_SECONDS:
        return []
    return [part for part in snapshot.parts if _silence(part, snapshot) > UNREACHABLE_SECONDS]


def _describe_cut(part: ComponentSnapshot, snapshot: SystemSnapshot) -> str:
    silence = format_duration(_silence(part, snapshot))
    return (
        f"the synchronizer has not heard of {display_name(part.name)} for {silence}, "
        f"and both answer here: {ADVICE}"
    )


def _silence(part: ComponentSnapshot, snapshot: SystemSnapshot) -> float:
    """Returns the silence of the newest member at this part's address; 0 without a member."""
    alike = [member for member in snapshot.members or () if member.role == part.name]
    there = [member for member in alike if member.address == part.address]
    if part.reply is not ProbeState.ANSWERS:
        return 0.0
    return min((member.silent_seconds for member in there), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChain:
    """Waits, each for the owner of the next; the target of the last one does not wait."""

    links: tuple[WaitReport, ...]
    end: str
    """The target of the last wait."""

    @property
    def root(self) -> WaitReport | None:
        """The wait that all others depend on."""
        return self.links[-1] if self.links else None


def wait_chain_of(snapshot: SystemSnapshot) -> WaitChain:
    """Follows the waits from the trainer, or from the explorer if no trainer is at work."""
    links: list[WaitReport] = []
    seen: set[str] = set()
    owner = "trainer" if _at_work(snapshot, "trainer") else "explorer"
    while owner in ROLES and owner not in seen:
        seen.add(owner)
        wait = _decisive(live_members(snapshot, owner))
        if wait is None:
            break
        links.append(wait)
        owner = _next(snapshot, wait)
    return WaitChain(links=tuple(links), end=owner)


def failing_loop_notes(snapshot: SystemSnapshot) -> tuple[str, ...]:
    """Describes loops of upkeep that fail; no run waits for them."""
    return tuple(
        as_sentence(
            f"a loop of {display_name(wait.owner)} fails and is started again, with longer pauses: "
            f"{wait.reason}{log_of(snapshot.part(wait.owner))}"
        )
        for wait in _loop_waits(snapshot, LoopKind.UPKEEP)
    )


def find_failing_loop(snapshot: SystemSnapshot) -> Diagnosis | None:
    """Finds a loop of the data path that fails; the run stalls as long as it does."""
    running = snapshot.running
    for wait in _loop_waits(snapshot, LoopKind.DATA_PATH):
        if wait.experiment_id and (running is None or wait.experiment_id != running.id):
            continue  # another run waits for it
        return Diagnosis(
            state=DiagnosisState.BROKEN,
            cause=f"{wait.owner} loop {wait.reason.partition(':')[0]}",
            text=as_sentence(
                f"the run waits for {display_name(wait.owner)}: a loop of its data path fails and "
                f"is started again, with longer pauses: {wait.reason}"
                f"{log_of(snapshot.part(wait.owner))}"
            ),
        )
    return None


def _loop_waits(snapshot: SystemSnapshot, kind: LoopKind) -> list[WaitReport]:
    members = [member for role in ROLES for member in live_members(snapshot, role)]
    return [wait for member in members for wait in member.waits if wait.waits_for == kind]


def live_members(snapshot: SystemSnapshot, role: str) -> list[MemberReport]:
    """Returns the role's live members, idle or on the running experiment, one per address."""
    running = snapshot.running
    own = (running.id if running else "", "")
    newest: dict[str, MemberReport] = {}
    for member in snapshot.members or ():
        if member.role != role or member.silent_seconds > LIVE_SECONDS:
            continue
        known = newest.get(member.address)
        if known is None or member.silent_seconds < known.silent_seconds:
            newest[member.address] = member
    return [member for member in newest.values() if member.experiment_id in own]


def _at_work(snapshot: SystemSnapshot, role: str) -> bool:
    return any(member.experiment_id for member in live_members(snapshot, role))


def _decisive(members: list[MemberReport]) -> WaitReport | None:
    """Returns the longest wait; waits for work or for a batch count only if there is no other."""
    waits = [wait for member in members for wait in member.waits if wait.waits_for not in LOOPS]
    others = [
        wait for wait in waits if wait.waits_for != "buffer" or wait.kind == WaitKind.NO_ANSWER
    ]
    return max(others or waits, key=lambda wait: wait.waited_seconds, default=None)


def _next(snapshot: SystemSnapshot, wait: WaitReport) -> str:
    """Returns the part that must act so that this wait ends."""
    if wait.kind in OUTSIDE:
        return wait.kind
    if wait.waits_for != "buffer" or wait.kind == WaitKind.NO_ANSWER:
        return wait.waits_for
    if _decisive(live_members(snapshot, "buffer")) is not None:
        return "buffer"
    running = snapshot.running
    if wait.owner == "trainer":
        return "explorer" if running is not None and "explorer" in running.open_roles else "buffer"
    # An explorer with uncommitted results waits for the buffer itself.
    is_idle = wait.kind != WaitKind.COMMIT
    return "trainer" if _at_work(snapshot, "trainer") and is_idle else "buffer"
