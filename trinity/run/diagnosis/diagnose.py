"""Finds the cause that holds up a run, if any, from a snapshot."""

from dataclasses import replace

from trinity.run.diagnosis.rules import (
    OUTSIDE,
    PART_OF,
    Diagnosis,
    DiagnosisState,
    WaitChain,
    as_sentence,
    busy_notes,
    display_name,
    failing_loop_notes,
    find_broken,
    find_busy,
    find_failing_loop,
    find_unreachable,
    link_hint,
    live_members,
    log_of,
    restart_notes,
    unreachable_notes,
    wait_chain_of,
)
from trinity.run.diagnosis.snapshot import SystemSnapshot
from trinity.run.output import format_duration
from trinity.run.state import NEWER, ExperimentReport, WaitReport, WorkReport

SLOW_TARGETS = ("workflow", "ranks", "engine", "external model", "reader", "advantage function")
"""Targets of waits for work that may simply be slow."""
OWN_TARGETS = (*SLOW_TARGETS, "files")
"""Targets that belong to the waiting part itself."""
WORKER_ROLES = ("trainer", "explorer")
OUTAGE_SECONDS = 2.0
SLOW_SECONDS = 3.0
SLOW_FACTOR = 3.0
"""Limit for slow work, in multiples of a whole step's usual duration."""
FIRST_STEP_SECONDS = 60.0
"""Limit while a step's usual duration is unknown; models are being loaded meanwhile."""
UNEXPLAINED_SECONDS = 60.0
UNEXPLAINED_FACTOR = 10.0
"""A part at work that reports no wait is considered stuck after so many usual steps."""
MIN_RUNS = 8
LOST_SHARE = 0.5
ADVICE = {
    "workflow": "An attempt that takes longer than `explorer.max_timeout` is aborted and made "
    "again, and at last its task is given up",
    "ranks": "When no rank gives a sign of life for `synchronizer.sync_timeout`, the trainer "
    "restarts them from the newest checkpoint",
    "engine": "A large model takes minutes to load; one that does not load is given up after "
    "`synchronizer.sync_timeout`",
    "external model": "A model that others serve and that does not answer is given up after "
    "`synchronizer.sync_timeout`, and the stage fails",
    "files": "Weights whose files do not match their manifest are never loaded: the disk is at "
    "fault, or they were changed",
    "advantage function": "One that takes too long is ended and tried again, at last without the "
    "group",
    "another trainer": "This one takes over when the other is gone",
    "rewards": "`trinity view state=awaiting` lists the samples; `buffer.feedback_timeout` would "
    "leave them out",
    "tasks": "`trinity taskset submit --queue` adds some, `trinity taskset close` ends the run "
    "with those that there are",
}


def diagnose(snapshot: SystemSnapshot) -> Diagnosis:
    """Applies the rules until one finds something; a full disk explains many symptoms."""
    verdict = _first_found(snapshot)
    if not snapshot.full_disk or verdict.state in (DiagnosisState.OVER, DiagnosisState.IDLE):
        return verdict
    text = as_sentence(f"the disk of {snapshot.full_disk} is full: make room there")
    if verdict.is_healthy:
        return replace(verdict, notes=(*verdict.notes, text))
    again = "A run that has ended by then continues with the command that started it."
    return Diagnosis(
        state=DiagnosisState.BROKEN,
        cause="disk full",
        text=f"{text} {again} What is seen of it: {verdict.text}",
        notes=verdict.notes,
    )


def _first_found(snapshot: SystemSnapshot) -> Diagnosis:
    if snapshot.experiments is not None and snapshot.running is None:
        return find_broken(snapshot) or _not_running(snapshot.experiments)
    return (
        find_broken(snapshot)
        or _unknown(snapshot)
        or find_unreachable(snapshot)
        or find_failing_loop(snapshot)
        or _missing(snapshot)
        or _waits(snapshot)
    )


def _not_running(experiments: tuple[ExperimentReport, ...]) -> Diagnosis:
    if not experiments:
        return Diagnosis(
            state=DiagnosisState.IDLE, cause="", text="No experiment has been started."
        )
    newest = experiments[0]
    why = f": {newest.reason}" if newest.reason else ""
    state = DiagnosisState.IDLE if newest.state == "finished" else DiagnosisState.OVER
    return Diagnosis(
        state=state, cause=newest.state, text=f"{newest.label} is {newest.state}{why}."
    )


def _unknown(snapshot: SystemSnapshot) -> Diagnosis | None:
    """Reports a part that is alive but cannot report the state."""
    if snapshot.members is not None and snapshot.work is not None:
        return None
    part = "synchronizer" if snapshot.members is None else "buffer"
    if (busy := find_busy(snapshot, "postgres", part)) is not None:
        return busy
    text = f"the run waits for {display_name(part)}, which is alive but cannot report the state"
    unanswered = f" ({snapshot.unanswered})" if snapshot.unanswered else ""
    own = _own_wait(snapshot, part)
    return Diagnosis(
        state=DiagnosisState.BROKEN,
        cause=f"{part} unknown",
        text=as_sentence(f"{text}{unanswered}{own}{log_of(snapshot.part(part))}"),
    )


def _own_wait(snapshot: SystemSnapshot, part: str) -> str:
    """Describes the part's longest wait that is known to the synchronizer."""
    waits = [wait for member in live_members(snapshot, part) for wait in member.waits]
    longest = max(waits, key=lambda wait: wait.waited_seconds, default=None)
    return f": {_describe(longest)}{link_hint(snapshot, longest)}" if longest else ""


def _missing(snapshot: SystemSnapshot) -> Diagnosis | None:
    """Finds a role that the stage needs and that no live member has."""
    running = snapshot.running
    for role in running.open_roles if running is not None else ():
        if role in ("trainer", "explorer") and not live_members(snapshot, role):
            if (busy := find_busy(snapshot, role)) is not None:
                return busy
            heard = [
                member.silent_seconds for member in snapshot.members or () if member.role == role
            ]
            last = f" (the last one {format_duration(min(heard))} ago)" if heard else ""
            text = f"the run waits for {display_name(role)}: none has been heard of{last}"
            return Diagnosis(
                state=DiagnosisState.BROKEN,
                cause=f"{role} missing",
                text=as_sentence(text + log_of(snapshot.part(role))),
            )
    return None


def _waits(snapshot: SystemSnapshot) -> Diagnosis:
    chain, work = wait_chain_of(snapshot), snapshot.running_work
    root = chain.root
    turn = snapshot.running.turn if snapshot.running is not None else None
    notes = (
        *((as_sentence(turn.text),) if turn is not None else ()),
        *_notes(work),
        *_refusals(work),
        *restart_notes(snapshot),
        *unreachable_notes(snapshot),
        *busy_notes(snapshot),
        *failing_loop_notes(snapshot),
    )
    if root is not None and chain.end not in WORKER_ROLES:
        if root.waited_seconds >= _normal_wait_seconds(chain, root, work):
            return Diagnosis(
                state=DiagnosisState.HELD,
                cause=f"{root.owner} waits for {root.waits_for}",
                text=_held(snapshot, chain, root),
                owner=root.owner if root.waits_for in OWN_TARGETS else "",
                notes=notes,
            )
    elif _is_unexplained(work):
        text = (
            f"{_progress(work)}, and {display_name(chain.end)}, which has to act, reports no wait"
        )
        return Diagnosis(
            state=DiagnosisState.HELD,
            cause=f"{chain.end} silent",
            text=as_sentence(text + log_of(snapshot.part(chain.end))),
            notes=notes,
        )
    return Diagnosis(
        state=DiagnosisState.WORKING, cause="", text=_working(snapshot, chain, work), notes=notes
    )


def _is_unexplained(work: WorkReport | None) -> bool:
    if work is None or not work.step_seconds:
        return False
    limit = max(UNEXPLAINED_SECONDS, UNEXPLAINED_FACTOR * work.step_seconds)
    return work.step_age_seconds > limit


def _normal_wait_seconds(chain: WaitChain, root: WaitReport, work: WorkReport | None) -> float:
    """Returns the duration for which a wait of this kind is normal."""
    if root.waits_for not in SLOW_TARGETS and chain.end not in OUTSIDE:
        return OUTAGE_SECONDS
    if work is None or not work.step_seconds:
        return FIRST_STEP_SECONDS
    return max(SLOW_SECONDS, SLOW_FACTOR * work.step_seconds)


def _held(snapshot: SystemSnapshot, chain: WaitChain, root: WaitReport) -> str:
    if root.waits_for in OWN_TARGETS:
        since = format_duration(root.waited_seconds)
        whose = f"{display_name(root.waits_for)} of {display_name(root.owner)}"
        text = f"the run has waited {since} for {whose}: {root.reason}"
    else:
        hint = link_hint(snapshot, root)
        text = f"the run waits for {display_name(chain.end)}: {_describe(root)}{hint}"
    if root.deadline_seconds:
        text += f"; that ends in {format_duration(root.deadline_seconds)} at the latest"
    before = [_describe(wait) for wait in reversed(chain.links[:-1])]
    if before:
        text += f" (therefore {'; '.join(before)})"
    whose_log = root.owner if root.waits_for in OWN_TARGETS else chain.end
    log = log_of(snapshot.part(PART_OF.get(whose_log, whose_log)))
    if advice := ADVICE.get(root.waits_for) or ADVICE.get(chain.end):
        return f"{as_sentence(text)} {as_sentence(advice + log)}"
    return as_sentence(text + log)


def _describe(wait: WaitReport) -> str:
    owner, target = display_name(wait.owner), display_name(wait.waits_for)
    waited = format_duration(wait.waited_seconds)
    unknown = f" (kind {wait.kind})" if wait.kind.endswith(NEWER) else ""
    return f"{owner} has waited {waited} for {target}{unknown}: {wait.reason}"


def _working(snapshot: SystemSnapshot, chain: WaitChain, work: WorkReport | None) -> str:
    now = chain.root
    if now is not None and chain.end not in WORKER_ROLES:
        doing = _describe(now)
    else:
        members = live_members(snapshot, chain.end)
        doing = f"{display_name(chain.end)} is {members[0].activity}" if members else ""
    text = as_sentence(f"the run makes progress: {_progress(work)}{_idle(work)}")
    return f"{text} {as_sentence(f'now {doing}')}" if doing else text


def _idle(work: WorkReport | None) -> str:
    if work is None or work.idle_share < 0:
        return ""
    return f", and the trainer waited for {work.idle_share:.0%} of the newest steps' time"


def _progress(work: WorkReport | None) -> str:
    if work is None or work.step_age_seconds < 0:
        return "no step is trained yet"
    total = f" of {work.total_train_steps}" if work.total_train_steps else ""
    age = format_duration(work.step_age_seconds)
    return f"step {work.trained_step}{total} was trained {age} ago"


def _notes(work: WorkReport | None) -> tuple[str, ...]:
    """Reports that many runs fail, which makes every step costlier though no wait is longer."""
    if work is None or work.num_recent_runs < MIN_RUNS:
        return ()
    if work.num_recent_lost < LOST_SHARE * work.num_recent_runs:
        return ()
    drawn = f"; the newest step has drawn further tasks {work.refill_round} times"
    return (
        f"{work.num_recent_lost} of the last {work.num_recent_runs} runs gave nothing to train on, "
        f"most often because: {work.recent_loss}{drawn if work.refill_round else ''}. A step draws "
        "further tasks `buffer.max_refill_rounds` times, then `buffer.short_batch` decides.",
    )


def _refusals(work: WorkReport | None) -> tuple[str, ...]:
    """Reports results that the buffer did not take, which no later delivery changes."""
    if work is None or not work.num_dead_letters:
        return ()
    return (
        as_sentence(
            f"the buffer refused {work.num_dead_letters:,} results of stage {work.stage} and keeps "
            f"them in its table dead_letter, the newest because: {work.dead_letter_reason}"
        ),
    )
