"""Earlier runs that an experiment reads: their databases, ids and initial weights."""

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.error_collector import did_you_mean
from trinity.config.plan.parts import StoredRollouts
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.stored_rollouts import check_stored_advantages
from trinity.config.schema.choices import EXPLORING
from trinity.errors import RunFailed, UserError
from trinity.run.launch.resume import PLAN_FILE, has_run
from trinity.run.local.addresses import stack_directory_of
from trinity.runtime.rpc.limits import CALL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A run as the running stack knows it."""

    plan: ExperimentPlan

    async def experiment(
        self, synchronizer: SynchronizerServiceStub
    ) -> synchronizer_pb2.Experiment:
        """Returns the run's experiment.

        Raises: RunFailed when it was never started.
        """
        found = await find_experiment(synchronizer, self.plan.tenant, self.plan.label)
        if found is None:
            raise RunFailed(f"{self.plan.label} was never started: nothing of it is stored")
        return found

    def with_initial_weights(
        self, experiment: synchronizer_pb2.Experiment, stage: StagePlan
    ) -> StagePlan:
        """Returns the stage with the final weights of the stage before, if there are any.

        These include that stage's adapter, so the stage's own adapter starts at zero. Raises:
        RunFailed when they are gone.
        """
        names = [stage.name for stage in self.plan.stages]
        for before in reversed(experiment.stages[: names.index(stage.name)]):
            path = before.final_version.path
            if path and not Path(path).is_dir():
                raise RunFailed(
                    f"stage {stage.name} started from the last weights of stage {before.name}, "
                    f"which are not in {path}"
                )
            if path:
                return stage.model_copy(update={"model_path": path, "adapter_path": None})
        return stage


async def find_experiment(
    synchronizer: SynchronizerServiceStub, tenant: str, label: str, seconds: float = CALL_SECONDS
) -> synchronizer_pb2.Experiment | None:
    """Returns the tenant's experiment of this label, if it was ever started."""
    answer: synchronizer_pb2.GetStatusResponse = await synchronizer.GetStatus(
        synchronizer_pb2.GetStatusRequest(label=label), timeout=seconds, wait_for_ready=True
    )
    for experiment in answer.experiments:
        if (experiment.tenant, experiment.label) == (tenant, label):
            return experiment
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRuns:
    """The source runs of a plan on this machine: their database is used, in their directory."""

    home: Path

    @staticmethod
    def from_plan(plan: ExperimentPlan) -> "SourceRuns | None":
        """Returns the plan's source runs; None for a plan without them.

        Raises: UserError when a run is not there, or its experiences cannot be used.
        """
        homes = {}
        for stage in plan.stages:
            if (stored := stage.stored_rollouts) is not None and stored.run:
                homes[stored.run] = _checked(plan, stage, stored)
        if len({*homes.values()}) > 1:
            raise UserError(
                f"the runs {', '.join(homes)} have separate databases, and a run uses only one: "
                "take experiences from one of them"
            )
        return SourceRuns(home=next(iter(homes.values()))) if homes else None


def _checked(plan: ExperimentPlan, stage: StagePlan, stored: StoredRollouts) -> Path:
    """Checks one source run and returns the directory of its stack."""
    directory = Path(stage.config.checkpoint_root_dir).expanduser().absolute() / stored.run
    what = f"stage `{stage.name}`: `experience_buffer.source_run: {stored.run}`"
    if not has_run(directory):
        raise UserError(f"{what}: {directory} holds no run: explore first, or correct the name")
    source = _read(directory)
    if source.tenant != plan.tenant:
        raise UserError(f"{what} is not a run of tenant {plan.tenant}: no run takes from another's")
    taken = _stage_of(source, stored, what)
    check_stored_advantages(stage, taken, stored.model_copy(update={"stage": taken.name}))
    return stack_directory_of(directory)


def _read(directory: Path) -> ExperimentPlan:
    try:
        return ExperimentPlan.model_validate_json((directory / PLAN_FILE).read_bytes())
    except (OSError, ValidationError) as error:
        raise UserError(f"{directory / PLAN_FILE} cannot be read: {error}") from error


def _stage_of(source: ExperimentPlan, stored: StoredRollouts, what: str) -> StagePlan:
    explored = [stage for stage in source.stages if stage.mode in EXPLORING]
    found = [stage for stage in explored if stored.stage in ("", stage.name)]
    if found:
        return found[-1]
    raise _no_stage(stored, [stage.name for stage in explored], what)


def _no_stage(stored: StoredRollouts, names: list[str], what: str) -> UserError:
    if not names:
        return UserError(f"{what} has no stage that explored: nothing of it can be trained on")
    return UserError(
        f"{what} has no stage that explored with the name in `source_stage: {stored.stage}`"
        f"{did_you_mean(stored.stage, names)}"
    )


async def with_source_runs(
    synchronizer: SynchronizerServiceStub, plan: ExperimentPlan, seconds: float = CALL_SECONDS
) -> ExperimentPlan:
    """Returns the plan with the ids of its source runs, and the stages of those.

    `seconds` limits each answer.

    Raises: RunFailed when one of them is not known here; UserError when it has no such stage.
    """
    stages = []
    for stage in plan.stages:
        if (stored := stage.stored_rollouts) is not None and stored.run:
            found = await _found(synchronizer, plan.tenant, stage, stored, seconds)
            stage = stage.model_copy(update={"stored_rollouts": found})
        stages.append(stage)
    return plan.model_copy(update={"stages": tuple(stages)})


async def _found(
    synchronizer: SynchronizerServiceStub,
    tenant: str,
    stage: StagePlan,
    stored: StoredRollouts,
    seconds: float,
) -> StoredRollouts:
    what = f"stage `{stage.name}`: `experience_buffer.source_run: {stored.run}`"
    experiment = await find_experiment(synchronizer, tenant, stored.run, seconds)
    if experiment is None:
        raise RunFailed(f"{what} was never started here: nothing of it is stored")
    explored = await _explored(synchronizer, experiment.id, seconds)
    named = [name for name in explored if stored.stage in ("", name)]
    if not named:
        raise _no_stage(stored, explored, what)
    return stored.model_copy(update={"experiment_id": experiment.id, "stage": named[-1]})


async def _explored(
    synchronizer: SynchronizerServiceStub, experiment_id: str, seconds: float
) -> list[str]:
    """Returns the names of the stages that stored rollouts to train on."""
    answer: pb.GetExperimentResponse = await synchronizer.GetExperiment(
        pb.GetExperimentRequest(experiment_id=experiment_id), timeout=seconds
    )
    stages = json.loads(answer.plan_json)["stages"]
    return [str(stage["name"]) for stage in stages if stage["mode"] in EXPLORING]
