"""Snapshots of a run that gets on, to be changed where a test wants."""

from dataclasses import replace

from trinity.run.diagnosis.snapshot import ComponentSnapshot, SystemSnapshot
from trinity.run.state import ExperimentReport, MemberReport, StageReport, WaitReport, WorkReport

STAGE = StageReport(name="rft", state="running", roles=("trainer", "explorer"))
EXPERIMENT = ExperimentReport(id="e", label="p/run", state="running", stages=(STAGE,))
WORK = WorkReport(
    experiment_id="e",
    stage="rft",
    trained_step=12,
    total_train_steps=100,
    step_age_seconds=3.0,
    step_seconds=2.0,
)


def part(name: str, **changes: object) -> ComponentSnapshot:
    """A part that answers."""
    known = ComponentSnapshot(
        name=name, address="127.0.0.1:5000", pid=100, log_file=f"/run/log/{name}.log"
    )
    return replace(known, **changes)  # type: ignore[arg-type]


def wait(
    owner: str,
    waits_for: str,
    waited: float,
    reason: str = "it must",
    deadline: float = 0.0,
    **changes: str,
) -> WaitReport:
    """A wait that goes on."""
    return WaitReport(
        owner=owner,
        waits_for=waits_for,
        reason=reason,
        waited_seconds=waited,
        deadline_seconds=deadline,
        **changes,
    )


def member(role: str, *waits: WaitReport, **changes: object) -> MemberReport:
    """A member at work."""
    known = MemberReport(
        role=role,
        activity=f"{role} at work",
        address=f"{role}:1",
        experiment_id="" if role == "buffer" else "e",
        waits=waits,
    )
    return known.model_copy(update=changes)


def snapshot(*members: MemberReport, **changes: object) -> SystemSnapshot:
    """A run with these members; those that are not given have nothing to say."""
    given = {one.role for one in members}
    others = [member(role) for role in ("trainer", "explorer", "buffer") if role not in given]
    names = ("postgres", "nats", "synchronizer", "buffer", "trainer", "explorer")
    known = SystemSnapshot(
        parts=tuple(part(name) for name in names),
        members=(*members, *others),
        experiments=(EXPERIMENT,),
        work=(WORK,),
    )
    return known.model_copy(update=changes)


def with_parts(now: SystemSnapshot, *changed: ComponentSnapshot) -> SystemSnapshot:
    """The same run with other parts."""
    by_name = {one.name: one for one in changed}
    parts = tuple(by_name.get(one.name, one) for one in now.parts)
    return now.model_copy(update={"parts": parts})
