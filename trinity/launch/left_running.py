"""Experiments that a launcher left running when it ended without a word."""

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan import ExperimentPlan
from trinity.rpc.limits import CALL_SECONDS

REASON = "its launcher ended without a word"


async def cancel_left_running(
    synchronizer: SynchronizerServiceStub, plan: ExperimentPlan
) -> list[str]:
    """Cancel all but the plan's own: services take the oldest first; answers their labels.

    Call it only where the directory's lock covers the database: then no launcher of another lives.
    What is cancelled here goes on when it is started itself.
    """
    cancelled = []
    for one in await _running(synchronizer):
        if (one.tenant, one.label) != (plan.tenant, plan.label):
            request = pb.CancelExperimentRequest(experiment_id=one.id, reason=REASON)
            await synchronizer.CancelExperiment(request, timeout=CALL_SECONDS)
            cancelled.append(one.label)
    return cancelled


async def _running(synchronizer: SynchronizerServiceStub) -> list[pb.Experiment]:
    """However many there are: a status lists the newest alone."""
    request = pb.WatchExperimentsRequest()
    async for answer in synchronizer.WatchExperiments(
        request, timeout=CALL_SECONDS, wait_for_ready=True
    ):
        return list(answer.experiments)
    return []
