"""Services by their addresses: the experiments that a visitor sees there, and each one's services.

Studio calls them with the visitor's token, so the services decide about its access; Studio has no
additional rights.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TypeVar

import grpc

from trinity.api.v1 import synchronizer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.errors import (
    Forbidden,
    RpcError,
    TrinityError,
    Unauthenticated,
    Unavailable,
    UserError,
)
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.remote import gather_by_address
from trinity.run.diagnosis.rules import Diagnosis
from trinity.run.state import (
    ExperimentReport,
    RunReport,
    WorkReport,
    ask_status,
    ask_work,
    state_of,
)
from trinity.run.stored import identity_of
from trinity.runtime.host_port import split_address
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of, error_of
from trinity.runtime.security.credentials import Credentials
from trinity.runtime.security.plaintext_policy import refuse_plain_service
from trinity.studio.connection import (
    ServiceConnection,
    System,
    experiment_of,
    require_open,
    services_of,
    stages_of,
)
from trinity.studio.runs import RunDirectoryState, RunEntry
from trinity.studio.visitors import HOW_TO_GET_A_TOKEN

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
    "running": RunDirectoryState.RUNNING,
    "finished": RunDirectoryState.FINISHED,
    "failed": RunDirectoryState.FAILED,
    "cancelled": RunDirectoryState.STOPPED,
}


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


async def list_experiments(system: System) -> list[RunEntry]:
    """Returns the newest experiments that the caller may see, those first that may need someone.

    Raises: TrinityError with one sentence that says what to do.
    """
    return await _entries(system, await _state(system))


async def describe_experiment(system: System, experiment_id: str) -> RunEntry:
    """Returns the entry of one experiment.

    Raises: TrinityError with one sentence that says what to do.
    """
    state = await _state(system, experiment_id)
    entries = await _entries(system, state.of_experiment(experiment_id))
    if not entries:
        raise UserError(
            f"There is no experiment {experiment_id} here: choose one on the page Runs."
        )
    return entries[0]


async def _state(system: System, experiment_id: str = "") -> RunReport:
    async with open_channel(system.synchronizer, system.security) as channel:
        call = ask_status(SynchronizerServiceStub(channel), experiment_id, seconds=CALL_SECONDS)
        return state_of(await answer_from("synchronizer", system.synchronizer, call))


async def _entries(system: System, state: RunReport) -> list[RunEntry]:
    experiments = state.experiments or ()
    running = [known for known in experiments if known.state == "running"][:MAX_DESCRIBED]
    async with open_channel(system.buffer, system.security) as channel:
        buffer = BufferServiceStub(channel)
        answers = await asyncio.gather(
            *(
                answer_from(
                    "buffer", system.buffer, ask_work(buffer, known.tenant, known.id, CALL_SECONDS)
                )
                for known in running
            )
        )
    work = [stage for answer in answers for stage in state_of(work=answer).work or ()]
    waits = _longest_waits(state)
    entries = [_entry(known, work, waits.get(known.id, "")) for known in experiments]
    order = tuple(RunDirectoryState)
    return sorted(entries, key=lambda entry: order.index(entry.state))


def _longest_waits(state: RunReport) -> dict[str, str]:
    """Returns for each experiment what one of its members has waited for longest."""
    waits = [
        (member.experiment_id, wait) for member in state.members or () for wait in member.waits
    ]
    return {
        experiment: f"{wait.owner} waits {wait.waited_seconds:.0f} s for {wait.waits_for}: "
        f"{wait.reason}"
        for experiment, wait in sorted(waits, key=lambda known: known[1].waited_seconds)
    }


def _entry(experiment: ExperimentReport, work: Iterable[WorkReport], remark: str) -> RunEntry:
    begun = [stage for stage in experiment.stages if stage.state != "pending"]
    name, step = (begun[-1].name, begun[-1].final_version) if begun else ("", None)
    at_work = next(
        (known for known in work if (known.experiment_id, known.stage) == (experiment.id, name)),
        None,
    )
    return RunEntry(
        directory=NO_DIRECTORY,
        experiment_id=experiment.id,
        tenant=experiment.tenant,
        label=experiment.label,
        state=_STATES.get(experiment.state, RunDirectoryState.UNREADABLE),
        began=None,
        stage=name,
        step=at_work.trained_step if at_work else step,
        total_steps=(at_work.total_train_steps or None) if at_work else None,
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

    async def diagnose(self) -> Diagnosis:
        """Asks both services."""
        opened = require_open(self)
        snapshot = await gather_by_address(
            synchronizer=self.system.synchronizer,
            buffer=self.system.buffer,
            security=self.system.security,
            experiment_id=opened.experiment_id,
            tenant=opened.tenant,
        )
        return diagnose(snapshot)

    async def _once(self) -> None:
        """Uses the services until the experiment starts or ends, or they do not answer."""
        try:
            async with open_channel(self.system.synchronizer, self.system.security) as channel:
                synchronizer = SynchronizerServiceStub(channel)
                known = await self._experiment(synchronizer)
                self.job_dir = await asyncio.to_thread(_directory_here, known, self._places)
                await self._follow(synchronizer, known.experiment)
        except (TrinityError, OSError) as error:
            await self._failed(str(error))
        except grpc.aio.AioRpcError as error:
            await self._failed(str(error_of(error)))

    async def _follow(
        self, synchronizer: SynchronizerServiceStub, experiment: synchronizer_pb2.Experiment
    ) -> None:
        is_live = experiment.state == synchronizer_pb2.EXPERIMENT_STATE_RUNNING
        async with services_of(self.system, experiment, is_live=is_live) as opened:
            await answer_from("buffer", self.system.buffer, stages_of(opened))
            async with self._open(opened):
                while not self.is_idle:
                    await asyncio.sleep(LOOK_SECONDS)
                    known = await self._experiment(synchronizer)
                    if known.experiment.state != experiment.state:
                        return

    async def _experiment(
        self, synchronizer: SynchronizerServiceStub
    ) -> synchronizer_pb2.GetExperimentResponse:
        call = experiment_of(synchronizer, self.experiment_id, CALL_SECONDS)
        return await answer_from("synchronizer", self.system.synchronizer, call)


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
