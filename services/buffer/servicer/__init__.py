"""RPC methods of the buffer: convert requests, call the handlers, convert responses."""

from services.buffer.servicer.curation_calls import SteeringCalls
from services.buffer.servicer.explorer_calls import CommitCalls, LeaseCalls
from services.buffer.servicer.query_calls import LookingCalls
from services.buffer.servicer.stage_calls import StageCalls
from services.buffer.servicer.taskset_calls import TasksetCalls
from services.buffer.servicer.trainer_calls import ProgressCalls, TrainerCalls


class BufferServicer(
    StageCalls, TasksetCalls, LeaseCalls, CommitCalls, TrainerCalls, ProgressCalls
):
    """Implements trinity.api.v1.BufferService."""


class QueryServicer(LookingCalls, SteeringCalls):
    """Implements trinity.api.v1.QueryService."""
