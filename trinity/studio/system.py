"""Services by their addresses: the experiments that a visitor sees there, and each one's services.

Studio calls them with the visitor's token, so the services decide about its access; Studio has no
additional rights.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import (
    Forbidden,
    RpcError,
    TrinityError,
    Unauthenticated,
    Unavailable,
    UserError,
)
from trinity.inspect.open import identity_of, list_stages
from trinity.run.local.addresses import ServiceAddresses
from trinity.runtime.host_port import split_address
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of, error_of
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_service
from trinity.studio.connection import OpenRun, ServiceConnection
from trinity.studio.runs import RunDirectoryState, RunEntry
from trinity.studio.visitors import HOW_TO_GET_A_TOKEN, Visitor

ValueT = TypeVar("ValueT")
CALL_SECONDS = 5.0
LOOK_SECONDS = 3.0
"""Pause between two looks at an experiment's state."""
MAX_DESCRIBED = 50
"""Running experiments of a list that are shown with their step; each takes a call."""
NO_DIRECTORY = Path("/nonexistent")
"""The directory of an experiment whose files are not on this machine."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STATES = {
    synchronizer_pb2.EXPERIMENT_STATE_RUNNING: RunDirectoryState.RUNNING,
    synchronizer_pb2.EXPERIMENT_STATE_FINISHED: RunDirectoryState.FINISHED,
    synchronizer_pb2.EXPERIMENT_STATE_FAILED: RunDirectoryState.FAILED,
    synchronizer_pb2.EXPERIMENT_STATE_CANCELLED: RunDirectoryState.STOPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The addresses of the buffer and the synchronizer of a deployment, with the credentials."""

    buffer: str
    synchronizer: str
    security: Credentials

    def for_visitor(self, visitor: Visitor) -> "System":
        """Returns the same services, called with the visitor's token."""
        if not visitor.token:
            return self
        security = self.security.for_bearer(visitor.token)
        return System(buffer=self.buffer, synchronizer=self.synchronizer, security=security)

    def addresses(self) -> ServiceAddresses:
        """Returns the addresses that are known; the others are empty."""
        return ServiceAddresses(
            synchronizer=self.synchronizer,
            buffer=self.buffer,
            trainer="",
            explorer="",
            nats_url="",
            postgres_dsn="",
            security_dir=str(self.security.folder or ""),
        )


def system_at(*, buffer: str, synchronizer: str, security: Credentials) -> System | None:
    """Returns the services at these addresses; None if both are empty.

    Raises: UserError if one of them is missing or not an address, or if it is beyond loopback and
    there are no credentials.
    """
    if not buffer and not synchronizer:
        return None
    for option, address in (("--buffer", buffer), ("--synchronizer", synchronizer)):
        if not address:
            raise UserError(f"{option} is missing: Studio needs the addresses of both services")
        split_address(address)
        if not security.is_on:
            refuse_plain_service(address)
    return System(buffer=buffer, synchronizer=synchronizer, security=security)


def is_experiment_id(word: str) -> bool:
    """Returns true if the word is the id of an experiment, and not a directory."""
    return _UUID.fullmatch(word) is not None


async def answer_from(service: str, address: str, call: Awaitable[ValueT]) -> ValueT:
    """Returns the answer of a service.

    Raises: TrinityError that names the service, the problem and its remedy.
    """
    try:
        return await answer_of(call)
    except RpcError as error:
        raise _explained(service, address, error) from error


def _explained(service: str, address: str, error: RpcError) -> TrinityError:
    if isinstance(error, Unauthenticated):
        return UserError(
            f"The {service} at {address} does not accept the token ({error}): {HOW_TO_GET_A_TOKEN}."
        )
    if isinstance(error, Forbidden):
        return UserError(
            f"The {service} at {address} refuses ({error}): ask with a token of the experiment's "
            f"tenant; {HOW_TO_GET_A_TOKEN}."
        )
    if isinstance(error, Unavailable):
        return Unavailable(
            f"The {service} at {address} does not answer ({error}): check that it runs, its "
            f"address in --{service}, and the certificates in TRINITY_SECURITY_DIR."
        )
    return error


async def _status(system: System, experiment_id: str = "") -> synchronizer_pb2.GetStatusResponse:
    request = synchronizer_pb2.GetStatusRequest(experiment_id=experiment_id)
    async with open_channel(system.synchronizer, system.security) as channel:
        call = SynchronizerServiceStub(channel).GetStatus(request, timeout=CALL_SECONDS)
        answer: synchronizer_pb2.GetStatusResponse = await answer_from(
            "synchronizer", system.synchronizer, call
        )
        return answer


async def list_experiments(system: System) -> list[RunEntry]:
    """Returns the newest experiments that the caller may see, those first that may need someone.

    Raises: TrinityError with one sentence that says what to do.
    """
    status = await _status(system)
    return await _entries(system, status.experiments, status.members)


async def describe_experiment(system: System, experiment_id: str) -> RunEntry:
    """Returns the entry of one experiment.

    Raises: TrinityError with one sentence that says what to do.
    """
    status = await _status(system, experiment_id)
    found = [experiment for experiment in status.experiments if experiment.id == experiment_id]
    if not found:
        raise UserError(
            f"There is no experiment {experiment_id} here: choose one on the page Runs."
        )
    return (await _entries(system, found, status.members))[0]


async def _entries(
    system: System,
    experiments: Iterable[synchronizer_pb2.Experiment],
    members: Iterable[synchronizer_pb2.Member],
) -> list[RunEntry]:
    known, waiting = list(experiments), _longest_waits(members)
    running = [
        experiment for experiment in known if _state(experiment) is RunDirectoryState.RUNNING
    ][:MAX_DESCRIBED]
    async with open_channel(system.buffer, system.security) as channel:
        buffer = BufferServiceStub(channel)
        work = await asyncio.gather(*(_work(system, buffer, experiment) for experiment in running))
    of_id = {experiment.id: status for experiment, status in zip(running, work, strict=True)}
    entries = [
        _entry(experiment, of_id.get(experiment.id), waiting.get(experiment.id, ""))
        for experiment in known
    ]
    order = tuple(RunDirectoryState)
    return sorted(entries, key=lambda entry: order.index(entry.state))


async def _work(
    system: System, buffer: BufferServiceStub, experiment: synchronizer_pb2.Experiment
) -> buffer_pb2.GetBufferStatusResponse:
    request = buffer_pb2.GetBufferStatusRequest(
        tenant=experiment.tenant, experiment_id=experiment.id
    )
    answer: buffer_pb2.GetBufferStatusResponse = await answer_from(
        "buffer", system.buffer, buffer.GetBufferStatus(request, timeout=CALL_SECONDS)
    )
    return answer


def _longest_waits(members: Iterable[synchronizer_pb2.Member]) -> dict[str, str]:
    """Returns for each experiment what one of its members has waited for longest."""
    longest: dict[str, synchronizer_pb2.Wait] = {}
    for member in members:
        for wait in member.waits:
            known = longest.get(member.experiment_id)
            if known is None or wait.waited_seconds > known.waited_seconds:
                longest[member.experiment_id] = wait
    return {
        experiment: f"{wait.owner} waits {wait.waited_seconds:.0f} s for {wait.waits_for}: "
        f"{wait.reason}"
        for experiment, wait in longest.items()
    }


def _state(experiment: synchronizer_pb2.Experiment) -> RunDirectoryState:
    return _STATES.get(experiment.state, RunDirectoryState.UNREADABLE)


def _entry(
    experiment: synchronizer_pb2.Experiment,
    work: buffer_pb2.GetBufferStatusResponse | None,
    remark: str,
) -> RunEntry:
    begun = [
        stage for stage in experiment.stages if stage.state != synchronizer_pb2.STAGE_STATE_PENDING
    ]
    stage = begun[-1] if begun else synchronizer_pb2.Stage()
    open_stages = (
        [status for status in work.stages if status.key.stage == stage.name] if work else []
    )
    step: int | None = open_stages[0].trained_step if open_stages else None
    if step is None and stage.HasField("final_version"):
        step = stage.final_version.version
    return RunEntry(
        directory=NO_DIRECTORY,
        experiment_id=experiment.id,
        tenant=experiment.tenant,
        label=experiment.label,
        state=_state(experiment),
        began=None,
        stage=stage.name,
        step=step,
        total_steps=(open_stages[0].total_train_steps or None) if open_stages else None,
        reason=experiment.reason or remark,
    )


class SystemConnection(ServiceConnection):
    """Follows one experiment of a deployment, with the token of one visitor."""

    def __init__(
        self,
        system: System,
        experiment_id: str,
        *,
        places: Iterable[Path] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(NO_DIRECTORY, clock=clock)
        self.system = system
        self.experiment_id = experiment_id
        self._places = tuple(places)

    async def _once(self) -> None:
        try:
            async with (
                open_channel(self.system.buffer, self.system.security) as buffer,
                open_channel(self.system.synchronizer, self.system.security) as synchronizer,
            ):
                await self._follow(buffer, synchronizer)
        except (TrinityError, OSError) as error:
            await self._failed(str(error))
        except grpc.aio.AioRpcError as error:
            await self._failed(str(error_of(error)))

    async def _follow(self, buffer: grpc.aio.Channel, synchronizer: grpc.aio.Channel) -> None:
        """Uses the services until the experiment starts or ends, or they do not answer."""
        stub = SynchronizerServiceStub(synchronizer)
        known = await self._experiment(stub)
        experiment = known.experiment
        self.job_dir = await asyncio.to_thread(_directory_here, known, self._places)
        queries = QueryServiceStub(buffer)
        await answer_from(
            "buffer", self.system.buffer, list_stages(queries, experiment.id, experiment.tenant)
        )
        opened = OpenRun(
            addresses=self.system.addresses(),
            buffer=BufferServiceStub(buffer),
            queries=queries,
            synchronizer=stub,
            tenant=experiment.tenant,
            label=experiment.label,
            experiment_id=experiment.id,
            is_live=_state(experiment) is RunDirectoryState.RUNNING,
        )
        async with self._open(opened):
            while not self.is_idle:
                await asyncio.sleep(LOOK_SECONDS)
                if (await self._experiment(stub)).experiment.state != experiment.state:
                    return

    async def _experiment(
        self, stub: SynchronizerServiceStub
    ) -> synchronizer_pb2.GetExperimentResponse:
        request = synchronizer_pb2.GetExperimentRequest(experiment_id=self.experiment_id)
        answer: synchronizer_pb2.GetExperimentResponse = await answer_from(
            "synchronizer",
            self.system.synchronizer,
            stub.GetExperiment(request, timeout=CALL_SECONDS),
        )
        return answer


def _directory_here(known: synchronizer_pb2.GetExperimentResponse, places: Iterable[Path]) -> Path:
    """Returns the experiment's directory if it is below a place that Studio was given.

    The directory stands in a plan that its tenant wrote: it counts only where the plan that is
    stored there is of the same experiment.
    """
    try:
        resolved = Path(json.loads(known.plan_json)["job_dir"]).resolve()
        if not any(resolved.is_relative_to(place.resolve()) for place in places):
            return NO_DIRECTORY
        of_plan = identity_of(resolved)
    except (TrinityError, OSError, ValueError, KeyError, TypeError):
        return NO_DIRECTORY
    experiment = known.experiment
    return resolved if of_plan == (experiment.tenant, experiment.label) else NO_DIRECTORY
