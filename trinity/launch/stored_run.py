"""A run whose database another experiment uses: its id there, and what its stages started from."""

from dataclasses import dataclass
from pathlib import Path

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.errors import RunFailed
from trinity.rpc.limits import CALL_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """The run as the running stack knows it."""

    plan: ExperimentPlan

    async def experiment(
        self, synchronizer: SynchronizerServiceStub
    ) -> synchronizer_pb2.Experiment:
        """Raises: RunFailed when it was never started."""
        found = await find_experiment(synchronizer, self.plan.tenant, self.plan.label)
        if found is None:
            raise RunFailed(f"{self.plan.label} was never started: nothing of it is stored")
        return found

    def as_it_began(self, experiment: synchronizer_pb2.Experiment, stage: StagePlan) -> StagePlan:
        """With what the stage before had ended with, if there is one with weights.

        These hold their adapter, so that the stage's own is one at zero. Raises: RunFailed when
        they are gone.
        """
        names = [one.name for one in self.plan.stages]
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
    """The tenant's experiment of this label, if it was ever started."""
    answer: synchronizer_pb2.GetStatusResponse = await synchronizer.GetStatus(
        synchronizer_pb2.GetStatusRequest(label=label), timeout=seconds, wait_for_ready=True
    )
    for one in answer.experiments:
        if (one.tenant, one.label) == (tenant, label):
            return one
    return None
