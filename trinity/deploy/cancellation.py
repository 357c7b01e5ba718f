"""Cancels an experiment on running services."""

import grpc

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.deploy.submission import not_taken
from trinity.errors import UserError
from trinity.launch.stored_run import find_experiment
from trinity.rpc.channel import open_channel
from trinity.rpc.limits import CALL_SECONDS

ENDED = {
    pb.EXPERIMENT_STATE_FINISHED: "has finished",
    pb.EXPERIMENT_STATE_FAILED: "has failed",
    pb.EXPERIMENT_STATE_CANCELLED: "was cancelled before",
}


async def cancel_experiment(plan: ExperimentPlan, synchronizer: str, reason: str) -> str:
    """Cancels the experiment of a plan's label; returns its id.

    Raises: UserError when there is none, or it has ended.
    """
    async with open_channel(synchronizer) as channel:
        stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
        try:
            found = await find_experiment(stub, plan.tenant, plan.label)
            if found is None:
                raise UserError(f"{plan.label} was never submitted to {synchronizer}")
            if found.state in ENDED:
                why = f": {found.reason}" if found.reason else ""
                raise UserError(f"{plan.label} {ENDED[found.state]}{why}")
            request = pb.CancelExperimentRequest(experiment_id=found.id, reason=reason)
            await stub.CancelExperiment(request, timeout=CALL_SECONDS)
        except grpc.aio.AioRpcError as error:
            raise not_taken(synchronizer, error, CALL_SECONDS) from error
    return str(found.id)
