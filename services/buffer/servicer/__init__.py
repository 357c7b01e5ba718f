"""RPC methods of the buffer: convert requests, call the handlers, convert responses."""

from services.buffer.servicer.commits import CommitCalls
from services.buffer.servicer.leases import LeaseCalls
from services.buffer.servicer.progress import ProgressCalls
from services.buffer.servicer.queries import LookingCalls
from services.buffer.servicer.stages import StageCalls
from services.buffer.servicer.steering import SteeringCalls
from services.buffer.servicer.tasksets import TasksetCalls
from services.buffer.servicer.training import TrainerCalls


class BufferServicer(
    StageCalls, TasksetCalls, LeaseCalls, CommitCalls, TrainerCalls, ProgressCalls
):
    """Implements trinity.api.v1.BufferService."""


class QueryServicer(LookingCalls, SteeringCalls):
    """Implements trinity.api.v1.QueryService."""
