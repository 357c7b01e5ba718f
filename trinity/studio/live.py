"""The members of a running run, their waits, and the verdict of `trinity why`."""

from dataclasses import dataclass

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.run.diagnosis.remote import gather_by_address
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.local.addresses import stack_directory_of
from trinity.run.local.run_file import read_running
from trinity.runtime.rpc.errors import answer_of
from trinity.runtime.rpc.limits import CALL_SECONDS
from trinity.studio.connection import OpenRun, ServiceConnection
from trinity.studio.system import SystemConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer of `trinity why`."""

    is_healthy: bool
    text: str
    notes: tuple[str, ...] = ()


async def members_of(
    opened: OpenRun, num_closed_waits: int = 0
) -> tuple[list[synchronizer_pb2.Member], list[synchronizer_pb2.ClosedWait]]:
    """Returns the members that are idle or on the experiment, and their newest ended waits.

    Raises: TrinityError.
    """
    status: synchronizer_pb2.GetStatusResponse = await answer_of(
        opened.synchronizer.GetStatus(
            synchronizer_pb2.GetStatusRequest(
                experiment_id=opened.experiment_id, max_closed_waits=num_closed_waits
            ),
            timeout=CALL_SECONDS,
        )
    )
    known = ("", opened.experiment_id)
    members = [member for member in status.members if member.experiment_id in known]
    return members, list(status.closed_waits)


async def work_of(opened: OpenRun) -> tuple[buffer_pb2.StageStatus, ...]:
    """Asks the buffer about the open work of one experiment.

    Raises: TrinityError.
    """
    answer: buffer_pb2.GetBufferStatusResponse = await answer_of(
        opened.buffer.GetBufferStatus(
            buffer_pb2.GetBufferStatusRequest(
                tenant=opened.tenant, experiment_id=opened.experiment_id
            ),
            timeout=CALL_SECONDS,
        )
    )
    return tuple(answer.stages)


async def verdict_of(connection: ServiceConnection) -> Verdict:
    """Finds the cause that holds a run up by probing all parts: takes seconds if one is down."""
    if isinstance(connection, SystemConnection):
        return await _verdict_by_address(connection)
    home = stack_directory_of(connection.job_dir)
    running = read_running(home)
    if running is None:
        return Verdict(is_healthy=True, text="Nothing runs here.")
    return _verdict(diagnose(await gather(running, home)))


async def _verdict_by_address(connection: SystemConnection) -> Verdict:
    system, opened = connection.system, connection.opened
    if opened is None:
        return Verdict(is_healthy=True, text="The services are not open.")
    snapshot = await gather_by_address(
        synchronizer=system.synchronizer,
        buffer=system.buffer,
        security=system.security,
        experiment_id=opened.experiment_id,
        tenant=opened.tenant,
    )
    return _verdict(diagnose(snapshot))


def _verdict(found: Diagnosis) -> Verdict:
    return Verdict(is_healthy=found.is_healthy, text=found.text, notes=tuple(found.notes))
