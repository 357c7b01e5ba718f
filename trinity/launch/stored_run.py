"""A run whose database another experiment uses: its id there, and its stages' initial weights."""

from dataclasses import dataclass
from pathlib import Path

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.errors import RunFailed
from trinity.rpc.limits import CALL_SECONDS


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

    def as_it_began(self, experiment: synchronizer_pb2.Experiment, stage: StagePlan) -> StagePlan:
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
