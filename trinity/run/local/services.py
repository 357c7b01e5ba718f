"""The four services as processes of a local stack, and the check that one serves."""

import asyncio
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from trinity.errors import RunFailed
from trinity.run.local.addresses import InfrastructureFiles, ServiceAddresses
from trinity.run.local.files import OPERATOR, StackCredentials, socket_variables
from trinity.run.local.infrastructure import ProcessWithProbe
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.process.child_process import OWN_IDENTITY, module_command
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.security.credentials import PLAINTEXT, VARIABLE, Credentials

_RETRY_SECONDS = 0.05
# Retries soon while a service starts; gRPC's default is a second and more.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]
READY_SECONDS = 120.0
_GPU_DEVICES = Path("/proc/driver/nvidia/gpus")


async def wait_serving(
    name: str, address: str, timeout_seconds: float, security: Credentials = PLAINTEXT
) -> None:
    """Returns when the server at the address answers SERVING."""
    try:
        async with asyncio.timeout(timeout_seconds):
            async with open_channel(address, security, _OPTIONS) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                while not await _watch_until_serving(stub):  # noqa: ASYNC110 (a pause to reconnect)
                    await asyncio.sleep(_RETRY_SECONDS)
    except TimeoutError:
        raise RunFailed(
            f"The {name} at {address} was not ready within {timeout_seconds:.0f} s"
        ) from None


async def _watch_until_serving(stub: health_pb2_grpc.HealthStub) -> bool:
    """Returns true if the server reported SERVING before its stream broke."""
    try:
        async for answer in stub.Watch(health_pb2.HealthCheckRequest(), wait_for_ready=True):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return True
    except grpc.aio.AioRpcError:
        pass
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class StackContext:
    """Settings of the stack that its services receive."""

    job_dir: Path
    log_level: str
    addresses: ServiceAddresses
    files: InfrastructureFiles
    log_folder: str = ""
    """Folder in `log` for the logs of the services; empty is `log` itself."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Additional variables by the name of the service."""
    security: StackCredentials = field(default_factory=StackCredentials)

    @property
    def log_dir(self) -> Path:
        """Folder of the services' logs."""
        return self.job_dir / "log" / self.log_folder


def service_processes(around: StackContext) -> list[ProcessWithProbe]:
    """Returns the services in start order; they are stopped in reverse order."""
    at, files = around.addresses, around.files
    peers = {"SYNCHRONIZER": at.synchronizer, "BUFFER": at.buffer}
    synchronizer_dsn = str(files.synchronizer_postgres_dsn)
    buffer_needs = {
        **_owner_grants(around.security),
        "POSTGRES_DSN_FILE": str(files.buffer_postgres_dsn),
        "NATS_URL_FILE": str(files.buffer_nats_url),
        "SYNCHRONIZER": at.synchronizer,
        "MIGRATE_ON_START": "true",
    }
    return [
        _service(
            around,
            "synchronizer",
            at.synchronizer,
            {"POSTGRES_DSN_FILE": synchronizer_dsn, "MIGRATE_ON_START": "true"},
        ),
        _service(around, "buffer", at.buffer, buffer_needs),
        _service(around, "trainer", at.trainer, peers),
        _service(
            around,
            "explorer",
            at.explorer,
            {
                **peers,
                "NATS_URL_FILE": str(files.explorer_nats_url),
                "RUN_LOG_DIR": str(around.log_dir),
            },
            socket_variables(around.job_dir),
        ),
    ]


def _service(
    around: StackContext,
    name: str,
    address: str,
    settings: Mapping[str, str],
    others: Mapping[str, str] = MappingProxyType({}),
) -> ProcessWithProbe:
    """Describes one service; `settings` are its own variables, `others` those of its libraries."""
    settings = {"LISTEN": address, "LOG_LEVEL": around.log_level, **settings}
    prefix = f"TRINITY_{name.upper()}_"
    argv = module_command(f"services.{name}")
    spec = ProcessSpec(
        name=name,
        argv=OWN_IDENTITY.command(argv, death_signal=signal.SIGKILL),
        log_file=around.log_dir / f"{name}.log",
        env={
            **_thread_limit(),
            # gRPC's core logs every malformed header block that anyone sends.
            "GRPC_VERBOSITY": os.environ.get("GRPC_VERBOSITY", "NONE"),
            **others,
            **around.environment.get(name, {}),
            **{f"{prefix}{key}": value for key, value in settings.items()},
            **_security_folder(around.security.credentials_for(name)),
        },
    )
    security = around.security.credentials_for(OPERATOR)
    return ProcessWithProbe(spec, partial(wait_serving, name, address, READY_SECONDS, security))


def _owner_grants(security: StackCredentials) -> dict[str, str]:
    """Returns the access that a secured buffer grants to the tenant that started it.

    All these processes run as one user, so the tenant may use the user's files, addresses and
    functions. If the user sets one of the grants, the defaults of the others are dropped, because
    they would bypass that limit.
    """
    if security.root is None:
        return {}
    granted = {
        "TASKSET_ROOTS": f"{security.tenant}=/",
        "TASKSET_ADDRESSES": f"{security.tenant}=*",
        "FUNCTION_TENANTS": f"{security.tenant}=*",
        "FUNCTION_TRUST": "true",
    }
    is_limited = any(f"TRINITY_BUFFER_{name}" in os.environ for name in granted)
    return {} if is_limited else granted


def _security_folder(security: Credentials) -> dict[str, str]:
    return {VARIABLE: str(security.folder)} if security.is_on else {}


def _thread_limit() -> dict[str, str]:
    """Limits OpenMP to one thread without a GPU: several processes share the same few cores."""
    if _GPU_DEVICES.exists() or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": "1"}
