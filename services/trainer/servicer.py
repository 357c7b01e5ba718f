"""The trainer's one RPC."""

import grpc

from services.trainer.state import TrainerState
from trinity.api.v1 import trainer_pb2, trainer_pb2_grpc


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Answers from the state alone."""

    def __init__(self, state: TrainerState) -> None:
        self._state = state

    async def GetTrainerStatus(
        self,
        request: trainer_pb2.GetTrainerStatusRequest,
        context: grpc.aio.ServicerContext,
    ) -> trainer_pb2.GetTrainerStatusResponse:
        """Returns the trainer's current state."""
        del request, context
        state = self._state
        return trainer_pb2.GetTrainerStatusResponse(
            trainer_id=state.trainer_id,
            experiment_id=state.experiment_id,
            stage=state.stage,
            activity=state.activity,
            incarnation=state.incarnation,
            step=state.step,
            num_ranks=state.num_ranks,
            num_gang_starts=state.num_gang_starts,
        )
