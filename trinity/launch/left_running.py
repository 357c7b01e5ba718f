"""Experiments that a launcher left running when it died without notice."""

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.rpc.limits import CALL_SECONDS

REASON = "its launcher ended without a word"


async def cancel_left_running(
    synchronizer: SynchronizerServiceStub, plan: ExperimentPlan
) -> list[str]:
    """Cancels all experiments but the plan's own, and returns their labels.

    Services take the oldest experiment first. Call it only where the directory's lock covers the
    database: then no other launcher is alive. An experiment cancelled here continues when it is
    started again.
    """
    cancelled = []
    for experiment in await _running(synchronizer):
        if (experiment.tenant, experiment.label) != (plan.tenant, plan.label):
            request = pb.CancelExperimentRequest(experiment_id=experiment.id, reason=REASON)
            await synchronizer.CancelExperiment(request, timeout=CALL_SECONDS)
            cancelled.append(experiment.label)
    return cancelled


async def _running(synchronizer: SynchronizerServiceStub) -> list[pb.Experiment]:
    """Returns all running experiments: a status lists only the newest."""
    request = pb.WatchExperimentsRequest()
    async for answer in synchronizer.WatchExperiments(
        request, timeout=CALL_SECONDS, wait_for_ready=True
    ):
        return list(answer.experiments)
    return []
