"""A snapshot of one experiment from the addresses of its services, which is chosen there."""

import asyncio

from trinity.errors import RpcError
from trinity.run.diagnosis.gather import (
    ANSWER_SECONDS,
    CHANNEL_OPTIONS,
    MAX_ENDED_WAITS,
    ProbeResult,
    probe_service,
)
from trinity.run.diagnosis.snapshot import ComponentSnapshot, ProcessState, SystemSnapshot
from trinity.run.places import Deployment
from trinity.run.state import ask_state
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import Credentials


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


async def gather_from_services(place: Deployment) -> SystemSnapshot:
    """Asks both services about the experiment that is meant.

    The snapshot records a synchronizer that does not answer. Raises: UserError if an address is
    invalid or may not be used in plaintext, if the token is refused, or if it is not clear which
    experiment is meant.
    """
    place.check()
    try:
        meant = await place.find()
    except RpcError:
        meant = None
    return await gather_by_address(
        synchronizer=place.synchronizer,
        buffer=place.buffer,
        security=place.security,
        experiment_id=meant.id if meant else "",
        tenant=meant.tenant if meant else "",
    )
