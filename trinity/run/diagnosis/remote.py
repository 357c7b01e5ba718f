"""A snapshot of one experiment from the addresses of its services, which is chosen there."""

import asyncio
import re

import grpc

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import UserError
from trinity.run.diagnosis.gather import (
    ANSWER_SECONDS,
    CHANNEL_OPTIONS,
    MAX_ENDED_WAITS,
    ProbeResult,
    probe_service,
)
from trinity.run.diagnosis.snapshot import ComponentSnapshot, ProcessState, SystemSnapshot
from trinity.run.state import ask_state
from trinity.runtime.host_port import split_address
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import VARIABLE, Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_service

REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
RUNNING = synchronizer_pb2.EXPERIMENT_STATE_RUNNING
MAX_NAMED = 5
"""Most experiments that a message lists."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def gather_by_address(
    *, synchronizer: str, buffer: str, security: Credentials, experiment_id: str, tenant: str
) -> SystemSnapshot:
    """Asks both services at once about one experiment; takes seconds at most."""
    async with (
        open_channel(synchronizer, security, CHANNEL_OPTIONS) as to_synchronizer,
        open_channel(buffer, security, CHANNEL_OPTIONS) as to_buffer,
    ):
        state, synchronizer_answers, buffer_answers = await asyncio.gather(
            ask_state(
                to_synchronizer,
                to_buffer,
                experiment_id=experiment_id,
                tenant=tenant,
                max_ended_waits=MAX_ENDED_WAITS,
                seconds=ANSWER_SECONDS,
            ),
            probe_service(to_synchronizer),
            probe_service(to_buffer),
        )
    parts = (
        _part("synchronizer", synchronizer, synchronizer_answers),
        _part("buffer", buffer, buffer_answers),
    )
    return SystemSnapshot.with_parts(state.of_experiment(experiment_id), parts)


def _part(name: str, address: str, probed: ProbeResult) -> ComponentSnapshot:
    return ComponentSnapshot(
        name=name,
        address=address,
        condition=ProcessState.FOREIGN,
        reply=probed.reply,
        detail=probed.detail,
        asked_seconds=ANSWER_SECONDS,
    )


async def gather_from_services(
    *, synchronizer: str, buffer: str, security: Credentials, experiment: str = ""
) -> SystemSnapshot:
    """Asks both services about an experiment, by its id or label; else about the one that runs.

    The snapshot records a synchronizer that does not answer. Raises: UserError if an address is
    invalid or may not be used in plaintext, if the token is refused, or if it is not clear which
    experiment is meant.
    """
    for address in (synchronizer, buffer):
        split_address(address)
        if not security.is_on:
            refuse_plain_service(address)
    known = await _experiments(synchronizer, security, experiment)
    meant = None if known is None else _meant(known, experiment, synchronizer)
    return await gather_by_address(
        synchronizer=synchronizer,
        buffer=buffer,
        security=security,
        experiment_id=meant.id if meant else "",
        tenant=meant.tenant if meant else "",
    )


async def _experiments(
    address: str, security: Credentials, experiment: str
) -> list[synchronizer_pb2.Experiment] | None:
    """Returns the synchronizer's experiments, newest first; None if it does not answer."""
    request = synchronizer_pb2.GetStatusRequest()
    if _UUID.fullmatch(experiment):
        request.experiment_id = experiment
    else:
        request.label = experiment
    async with open_channel(address, security, CHANNEL_OPTIONS) as channel:
        try:
            status = await SynchronizerServiceStub(channel).GetStatus(
                request, timeout=ANSWER_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            if error.code() in REFUSALS:
                raise UserError(
                    f"the synchronizer at {address} refuses ({error.details()}): put a token with "
                    f"the scope `read` (`trinity token --scope read`) into the folder of {VARIABLE}"
                ) from error
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return []
            return None
    return list(status.experiments)


def _meant(
    known: list[synchronizer_pb2.Experiment], named: str, synchronizer: str
) -> synchronizer_pb2.Experiment | None:
    """Returns the only one that runs, or else the newest; None for an empty list."""
    if named and not known:
        raise UserError(
            f"the synchronizer at {synchronizer} knows no experiment {named}: leave --experiment "
            "out for the one that runs, or give the label or the id of another"
        )
    running = [found for found in known if found.state == RUNNING]
    if len(running) > 1:
        listed = ", ".join(f"{found.label} ({found.id})" for found in running[:MAX_NAMED])
        more = f" and {len(running) - MAX_NAMED} more" if len(running) > MAX_NAMED else ""
        raise UserError(
            f"several experiments run there: give one's label or id as --experiment: {listed}{more}"
        )
    return next(iter(running or known), None)
