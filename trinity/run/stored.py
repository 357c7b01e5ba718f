"""Opens the stored data of a job, through its running stack or a temporary one."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TypeVar

from trinity.api.v1 import buffer_pb2, query_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.config.error_collector import did_you_mean
from trinity.errors import RunFailed, Unauthenticated, Unavailable, UserError
from trinity.run.launch import stored_runs
from trinity.run.launch.resume import PLAN_FILE
from trinity.run.local.addresses import ServiceAddresses, stack_directory_of
from trinity.run.local.given_run import (
    copied_run,
    database_folder,
    is_own_database,
    refuse_given_database,
)
from trinity.run.local.infrastructure import ExternalServers, ProcessWithProbe
from trinity.run.local.run_file import read_running
from trinity.run.local.services import StackContext, service_processes
from trinity.run.local.stack import LocalStack
from trinity.run.places import Deployment, RunLocation
from trinity.runtime.retry import Retry
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.errors import answer_of, translate_rpc_errors
from trinity.runtime.rpc.limits import CALL_SECONDS

ValueT = TypeVar("ValueT")
START_SECONDS = 30.0
NEEDED = ("synchronizer", "buffer")
"""The services that read the store."""
_GRANTS = ("FUNCTION_TENANTS", "TASKSET_ROOTS", "TASKSET_ADDRESSES")
"""A buffer's settings of what tenants may have it use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredExperiment:
    """The stored data of one experiment."""

    queries: QueryServiceStub
    label: str
    stages: tuple[query_pb2.StoredStage, ...]
    """In the order in which they were opened."""
    buffer: BufferServiceStub | None = None
    """For images of samples."""

    def key(self, stage: str | None) -> buffer_pb2.StageKey:
        """Returns the key of the named stage; by default the last with samples, or the last.

        Raises: UserError when there is no such stage.
        """
        return self.stage(stage).key

    def stage(self, name: str | None) -> query_pb2.StoredStage:
        """Returns the same stage with its counts."""
        if name is None:
            holding = [stage for stage in self.stages if stage.counts]
            return (holding or self.stages)[-1]
        for stage in self.stages:
            if stage.key.stage == name:
                return stage
        names = [stage.key.stage for stage in self.stages]
        raise UserError(f"{self.label} has no stage {name!r}{did_you_mean(name, names)}")


@contextlib.asynccontextmanager
async def open_stored_experiment(
    place: RunLocation, *, to_change: bool = False
) -> AsyncIterator[StoredExperiment]:
    """Opens a run's stored experiment within the block.

    Raises: UserError when there is no run; RpcError, in the block too, when a query fails.
    """
    if isinstance(place, Deployment):
        async with _of_deployment(place) as stored:
            yield stored
        return
    tenant, label = identity_of(place)
    async with running_services(place, to_change=to_change) as addresses:
        with translate_rpc_errors():
            experiment_id = await find_experiment(addresses, tenant, label)
            async with open_channel(addresses.buffer, addresses.security) as channel:
                stored = await _stored(QueryServiceStub(channel), label, experiment_id)
                yield replace(stored, buffer=BufferServiceStub(channel))


@contextlib.asynccontextmanager
async def _of_deployment(place: Deployment) -> AsyncIterator[StoredExperiment]:
    if (found := await place.find()) is None:
        raise UserError(f"the synchronizer at {place.synchronizer} has no experiment")
    with translate_rpc_errors():
        async with open_channel(place.buffer, place.security) as channel:
            queries: QueryServiceStub = QueryServiceStub(channel)
            stored = await _stored(queries, found.label, found.id, found.tenant)
            yield replace(stored, buffer=BufferServiceStub(channel))


def identity_of(job_dir: Path) -> tuple[str, str]:
    """Returns the tenant and the label of the run in a directory.

    Raises: UserError if it has no run.
    """
    path = job_dir / PLAN_FILE
    try:
        plan = json.loads(path.read_text())
        return plan["tenant"], plan["label"]
    except FileNotFoundError:
        raise UserError(f"{job_dir} holds no run: give its --config or its --job-dir") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


@contextlib.asynccontextmanager
async def running_services(
    job_dir: Path, *, to_change: bool = False
) -> AsyncIterator[ServiceAddresses]:
    """Yields the addresses of the job's services, which are started for the block if necessary.

    Raises: UserError for a change of a run that others made.
    """
    home = stack_directory_of(job_dir)
    if (running := read_running(home)) is not None:
        yield running.addresses
        return
    sys.stderr.write(f"{job_dir} has stopped: opening it\n")
    if to_change:
        refuse_given_database(home, "change it")
    async with opened_stack(home) as stack:
        yield stack.addresses


@contextlib.asynccontextmanager
async def opened_stack(home: Path, *, only_views: bool = False) -> AsyncIterator[LocalStack]:
    """Starts the services that read the store of a stopped run.

    The database of a run that others made is opened as a copy in a box, and its buffer reads no
    files, opens no addresses and runs no functions for it.
    """
    is_external = ExternalServers.from_environment().postgres_dsn is not None
    if is_external or is_own_database(database_folder(home)):
        async with LocalStack(job_dir=home, services=only_needed, only_views=only_views) as stack:
            yield stack
        return
    sys.stderr.write(f"{home} was not made here: a copy of its database is opened in a box\n")
    copied = copied_run(home)
    copy = await asyncio.to_thread(copied.__enter__)
    try:
        none = dict.fromkeys((f"TRINITY_BUFFER_{name}" for name in _GRANTS), f"{token_hex()}=/")
        async with LocalStack(
            job_dir=copy, services=only_needed, environment={"buffer": none}, is_given=True
        ) as stack:
            yield stack
    finally:
        await asyncio.to_thread(copied.__exit__, None, None, None)


def only_needed(around: StackContext) -> list[ProcessWithProbe]:
    """Returns the services that read the store."""
    return [service for service in service_processes(around) if service.spec.name in NEEDED]


async def find_experiment(addresses: ServiceAddresses, tenant: str, label: str) -> str:
    """Returns the id of an experiment.

    Raises: UserError if it is not known there.
    """
    async with open_channel(addresses.synchronizer, addresses.security) as channel:
        synchronizer: SynchronizerServiceStub = SynchronizerServiceStub(channel)
        experiment = await stored_runs.find_experiment(synchronizer, tenant, label)
    if experiment is None:
        raise UserError(f"{label} was prepared and never started: nothing is stored")
    return experiment.id


async def _stored(
    queries: QueryServiceStub, label: str, experiment_id: str, tenant: str = ""
) -> StoredExperiment:
    answer = await retry_until_ready(partial(list_stages, queries, experiment_id, tenant))
    if not answer.stages:
        raise RunFailed(f"{label} has stored nothing yet")
    return StoredExperiment(queries=queries, label=label, stages=tuple(answer.stages))


async def list_stages(
    queries: QueryServiceStub, experiment_id: str, tenant: str = ""
) -> query_pb2.ListStagesResponse:
    """Returns the stages of an experiment with their counts.

    A caller whose token is for one tenant has to name it.
    """
    request = query_pb2.ListStagesRequest(tenant=tenant, experiment_id=experiment_id)
    answer: query_pb2.ListStagesResponse = await answer_of(
        queries.ListStages(request, timeout=CALL_SECONDS)
    )
    return answer


async def retry_until_ready(call: Callable[[], Awaitable[ValueT]]) -> ValueT:
    """Retries until a buffer that was just started has its database and schema."""
    retry = Retry(seconds=START_SECONDS, timeout_error=Unavailable, refusals=(Unauthenticated,))
    return await retry.call_async(call)
