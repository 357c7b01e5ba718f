"""A run that goes on with a changed file: what differs, in which stages, and what it may do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trinity.config.change_rules import NEW_RUN, ChangeKind
from trinity.config.plan.stage_length import ExperimentLengths
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.plan_changes import STEP_KEYS, PlanChange, SameContent, stage_changes

STAGES = "stages"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedRun:
    """The differences from the run that the directory holds."""

    changes: tuple[PlanChange, ...]
    is_longer: bool
    """True if the last stage may have more steps than before."""

    @property
    def impossible(self) -> tuple[PlanChange, ...]:
        """Changes that no run can go on with."""
        return self._of_kind(ChangeKind.IMPOSSIBLE)

    @property
    def needs_acceptance(self) -> tuple[PlanChange, ...]:
        """Changes that make it another experiment."""
        return self._of_kind(ChangeKind.EXPERIMENT)

    def _of_kind(self, kind: ChangeKind) -> tuple[PlanChange, ...]:
        return tuple(change for change in self.changes if change.kind is kind)

    def notes(self) -> Iterator[str]:
        """Yields a line for each change that the run goes on with."""
        for change in self.changes:
            if change.kind is ChangeKind.EXPERIMENT:
                when = "goes on with" if change.holds_from == "training" else "explores on with"
                yield f"{when} {change}, which changes the experiment: {change.why}"
            elif change.rounds:
                yield (
                    f"goes on with {change}: results may round differently from here on, so the "
                    "same bits are no longer promised"
                )
            else:
                yield f"goes on with {change}"


def compare_plans(
    before: ExperimentPlan,
    now: ExperimentPlan,
    same_content: SameContent,
    finished: Sequence[str] | None = None,
) -> ChangedRun:
    """Compares two plans of an experiment; `finished` names stages that later ones began from.

    Without it, the run's directory tells.
    """
    names = [stage.name for stage in before.stages], [stage.name for stage in now.stages]
    if names[0] != names[1]:
        return ChangedRun(changes=(_other_stages(*names),), is_longer=False)
    over = _stages_passed(now) if finished is None else finished
    found: dict[str, list[PlanChange]] = {
        old.name: list(stage_changes(old, new, same_content))
        for old, new in zip(before.stages, now.stages, strict=True)
    }
    ahead = {name: found[name] for name in names[1] if name not in over}
    changes = [change for of_stage in ahead.values() for change in of_stage]
    open_keys = {(change.key, change.now) for change in changes}
    for name in over:
        only_there = (change for change in found[name] if (change.key, change.now) not in open_keys)
        changes += [_in_finished(name, change) for change in only_there]
    lengths = [ExperimentLengths.model_validate(plan.model_dump()) for plan in (before, now)]
    is_longer = now.stages[-1].name in lengths[1].longer_than(lengths[0])
    told = tuple(_with_stages(change, ahead) for change in dict.fromkeys(changes))
    return ChangedRun(changes=told, is_longer=is_longer)


def _with_stages(change: PlanChange, ahead: Mapping[str, Sequence[PlanChange]]) -> PlanChange:
    """Returns a change that names its stages, where it is not one of all that are ahead."""
    stages = [f"`{name}`" for name, changes in ahead.items() if change in changes]
    if len(stages) in (0, len(ahead)):
        return change
    return replace(change, why=f"{change.why}, in stage {' and '.join(stages)}")


def _other_stages(before: Sequence[str], now: Sequence[str]) -> PlanChange:
    return PlanChange(
        key=STAGES,
        before=", ".join(before),
        now=", ".join(now),
        kind=ChangeKind.IMPOSSIBLE,
        why="its stages have other names, or their number is another one",
        instead="restore them, or give the experiment another `name`",
    )


def _stages_passed(plan: ExperimentPlan) -> list[str]:
    """Returns the stages before the last one that has begun, by what they left."""
    folders = [plan.job_path / "stages" / stage.name for stage in plan.stages]
    begun = [index for index, folder in enumerate(folders) if folder.is_dir()]
    return [stage.name for stage in plan.stages[: max(begun, default=0)]]


def _in_finished(stage: str, change: PlanChange) -> PlanChange:
    """Returns a change of a stage whose weights a later one began with."""
    if change.kind is ChangeKind.FREE and change.key not in STEP_KEYS:
        return replace(change, rounds=False)
    return replace(
        change,
        kind=ChangeKind.IMPOSSIBLE,
        why=f"stage `{stage}` is finished, and a later stage began with its weights",
        instead=f"restore it in this stage, or {NEW_RUN}",
    )
