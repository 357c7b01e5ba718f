"""Trains again on the batches that a run has stored, without an explorer.

It is a separate experiment: a new incarnation of the finished one would replace its checkpoints.
"""

from dataclasses import dataclass

from trinity.config.error_collector import did_you_mean
from trinity.config.plan.parts import StoredBatches
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.stored_rollouts import UNKNOWN
from trinity.errors import UserError
from trinity.run.launch.resume import check_resumable, has_run, keep_threads
from trinity.run.launch.run import SynchronizerStub
from trinity.run.launch.stored_runs import StoredRun, with_source_runs
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.services import StackContext, service_processes

FOLDER = "retrained"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainSteps:
    """A range of train steps, both ends included; they keep their numbers."""

    first: int
    last: int


def retraining_plan(
    plan: ExperimentPlan, *, stage: str | None, steps: RetrainSteps, name: str | None
) -> ExperimentPlan:
    """Returns an experiment of one stage, with its own directory inside the run's.

    Raises: UserError when the run is not there or has no such stage, or the name is taken.
    """
    if not has_run(plan.job_path):
        raise UserError(f"{plan.job_dir} holds no run whose batches could be trained again")
    plan = keep_threads(plan)
    source = _stage(plan, stage)
    own = name or f"{source.name}-{steps.first}-{steps.last}"
    stored = StoredBatches(
        experiment_id=UNKNOWN,
        stage=source.name,
        first_step=steps.first,
        last_step=steps.last,
    )
    changes = {"roles": ("trainer",), "eval_tasksets": (), "stored_batches": stored, "index": 0}
    made = plan.model_copy(
        update={
            "label": f"{plan.label}-{FOLDER}-{own}",
            "job_dir": str(plan.job_path / FOLDER / own),
            "stages": (source.model_copy(update=changes),),
        }
    )
    made.job_path.mkdir(parents=True, exist_ok=True)
    check_resumable(made)
    return made


def _stage(plan: ExperimentPlan, name: str | None) -> StagePlan:
    """Returns the stage of this name, or the last stage."""
    if name is None:
        return plan.stages[-1]
    for stage in plan.stages:
        if stage.name == name:
            return stage
    names = [stage.name for stage in plan.stages]
    raise UserError(f"{plan.label} has no stage {name!r}{did_you_mean(name, names)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainSource:
    """The run whose batches are trained again, as the running stack knows it."""

    plan: ExperimentPlan

    async def complete_plan(
        self, synchronizer: SynchronizerStub, made: ExperimentPlan
    ) -> ExperimentPlan:
        """Returns the plan with the run's id and the weights that its stage started from.

        Raises: RunFailed when the run was never started, or the stage before has no weights.
        """
        run = StoredRun(plan=self.plan)
        experiment = await run.experiment(synchronizer)
        [stage] = made.stages
        assert stage.stored_batches is not None, "it is a plan of this module"
        source = {"experiment_id": experiment.id}
        stored = stage.stored_batches.model_copy(update=source)
        changes: dict[str, object] = {"stored_batches": stored}
        if (rollouts := stage.stored_rollouts) is not None and not rollouts.run:
            changes["stored_rollouts"] = rollouts.model_copy(update=source)
        changed = run.with_initial_weights(experiment, stage).model_copy(update=changes)
        return await with_source_runs(synchronizer, made.model_copy(update={"stages": (changed,)}))


def without_explorer(around: StackContext) -> list[ProcessWithProbe]:
    """Returns the services without the explorer."""
    return [service for service in service_processes(around) if service.spec.name != "explorer"]
