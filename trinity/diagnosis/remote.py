"""A snapshot of one experiment from the addresses of its services alone.

Nothing is known of processes, logs, the broker and the database: the buffer and the synchronizer
say themselves when these do not answer them.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import grpc

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.diagnosis.gather import (
    ANSWER_SECONDS,
    CHANNEL_OPTIONS,
    MAX_ENDED_WAITS,
    ProbeResult,
    build_snapshot,
    probe_service,
)
from trinity.diagnosis.snapshot import ComponentSnapshot, ProcessState, SystemSnapshot
from trinity.rpc.channel import open_channel
from trinity.security.credentials import Credentials

T = TypeVar("T")


async def gather_by_address(
    *, synchronizer: str, buffer: str, security: Credentials, experiment_id: str, tenant: str
) -> SystemSnapshot:
    """Asks both services at once about one experiment; takes seconds at most."""
    async with (
        open_channel(synchronizer, security, CHANNEL_OPTIONS) as to_synchronizer,
        open_channel(buffer, security, CHANNEL_OPTIONS) as to_buffer,
    ):
        status, work, synchronizer_answers, buffer_answers = await asyncio.gather(
            _answer_or_reason(
                SynchronizerServiceStub(to_synchronizer).GetStatus(
                    synchronizer_pb2.GetStatusRequest(
                        experiment_id=experiment_id, max_closed_waits=MAX_ENDED_WAITS
                    ),
                    timeout=ANSWER_SECONDS,
                )
            ),
            _answer_or_reason(
                BufferServiceStub(to_buffer).GetBufferStatus(
                    buffer_pb2.GetBufferStatusRequest(tenant=tenant, experiment_id=experiment_id),
                    timeout=ANSWER_SECONDS,
                )
            ),
            probe_service(to_synchronizer),
            probe_service(to_buffer),
        )
    parts = (
        _part("synchronizer", synchronizer, synchronizer_answers),
        _part("buffer", buffer, buffer_answers),
    )
    return build_snapshot(parts, _of_experiment(status, experiment_id), work)


def _part(name: str, address: str, probed: ProbeResult) -> ComponentSnapshot:
    return ComponentSnapshot(
        name=name,
        address=address,
        condition=ProcessState.FOREIGN,
        reply=probed.reply,
        detail=probed.detail,
        asked_seconds=ANSWER_SECONDS,
    )


def _of_experiment(
    status: synchronizer_pb2.GetStatusResponse | str, experiment_id: str
) -> synchronizer_pb2.GetStatusResponse | str:
    """Leaves out what works on other experiments."""
    if isinstance(status, str):
        return status
    return synchronizer_pb2.GetStatusResponse(
        experiments=[found for found in status.experiments if found.id == experiment_id],
        members=[
            member for member in status.members if member.experiment_id in ("", experiment_id)
        ],
        closed_waits=status.closed_waits,
    )


async def _answer_or_reason(call: Awaitable[T]) -> T | str:
    """Returns the answer, or the reason why there is none."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        return str(error.details() or error.code().name)
