"""RPC methods of the buffer: convert requests, call the handlers, convert responses."""

from services.buffer.servicer.curation_calls import CurationRpcs, ScoreRpcs
from services.buffer.servicer.explorer_calls import CommitRpcs, LeaseRpcs
from services.buffer.servicer.query_calls import QueryRpcs
from services.buffer.servicer.session_calls import SessionRpcs
from services.buffer.servicer.stage_calls import StageRpcs
from services.buffer.servicer.taskset_calls import TasksetRpcs
from services.buffer.servicer.trainer_calls import ProgressRpcs, TrainerRpcs


class BufferServicer(
    StageRpcs, TasksetRpcs, LeaseRpcs, SessionRpcs, CommitRpcs, TrainerRpcs, ProgressRpcs
):
    """Implements trinity.api.v1.BufferService."""


class QueryServicer(QueryRpcs, ScoreRpcs, CurationRpcs):
    """Implements trinity.api.v1.QueryService."""
