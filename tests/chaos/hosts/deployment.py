"""The six parts, each on a host of its own, with certificates and tokens between them."""

import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.chaos.folder import VARIABLE, FaultsFolder
from tests.chaos.hosts.network import Network, network_of
from tests.chaos.hosts.stores import (
    MONITOR_PORT,
    NATS_PORT,
    TlsNats,
    TlsPostgres,
    programs_with_tls,
)
from tests.chaos.records import read_snapshot
from tests.chaos.snapshot import Snapshot
from tests.support.model_free.engine import RUN_SECONDS_VARIABLE
from tests.support.model_free.learner import STEP_SECONDS_VARIABLE
from tests.support.model_free.stack import model_free_services
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.run.local.addresses import SERVICES, InfrastructureFiles, ServiceAddresses
from trinity.run.local.files import OPERATOR, StackCredentials
from trinity.run.local.nats import NatsServer
from trinity.run.local.process_spec import ProcessSpec
from trinity.run.local.run_file import RunningStack
from trinity.run.local.services import StackContext
from trinity.runtime.security.certificates import STORES, CredentialIssuer, parts_of
from trinity.runtime.security.secret_files import SecretFiles

PORT = 50_050
STOP_SECONDS = 20.0
LIFETIME = timedelta(days=1)


@dataclass(slots=True, kw_only=True)
class Deployment:
    """A system that runs; its parts are called as in `trinity why`."""

    root: Path
    network: Network
    postgres: TlsPostgres
    nats: TlsNats
    addresses: ServiceAddresses
    security: StackCredentials
    folder: FaultsFolder
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def log_file(self, part: str) -> Path:
        """What a part has to say."""
        return self.root / "log" / f"{part}.log"

    def running(self) -> RunningStack:
        """As `trinity why` would read it."""
        return RunningStack(
            addresses=self.addresses,
            launcher_pid=os.getpid(),
            supervisor_pid=os.getpid(),
            pids={name: process.pid for name, process in self.processes.items()},
            started_at=datetime.now(UTC),
        )

    def snapshot(self, ended: pb.Experiment, expected_weights: str) -> Snapshot:
        """What is on record of an experiment that has ended."""
        return read_snapshot(
            buffer_dsn=self.postgres.dsn("buffer"),
            synchronizer_dsn=self.postgres.dsn("synchronizer"),
            folder=self.folder,
            experiment_id=ended.id,
            expected_weights=expected_weights,
        )


@asynccontextmanager
async def deployed(
    root: Path, *, run_seconds: float = 0.02, step_seconds: float = 0.2
) -> AsyncIterator[Deployment]:
    """All parts running; they end with the block, or with this process."""
    with network_of([*STORES, *SERVICES]) as network:
        deployment = _lay_out(root, network)
        environment = {
            "explorer": {RUN_SECONDS_VARIABLE: str(run_seconds)},
            "trainer": {STEP_SECONDS_VARIABLE: str(step_seconds)},
        }
        async with AsyncExitStack() as stack:
            _run(
                stack,
                deployment,
                deployment.postgres.prepare_process(deployment.log_file("postgres")),
            )
            _run(stack, deployment, deployment.nats.prepare_process(deployment.log_file("nats")))
            await deployment.postgres.wait_ready()
            services = model_free_services(
                {name: f"tests.chaos.processes.{name}" for name in SERVICES}
            )
            for service in services(_surroundings(deployment, environment)):
                _run(stack, deployment, service.spec)
                await service.wait_ready()
            yield deployment


def _lay_out(root: Path, network: Network) -> Deployment:
    (root / "log").mkdir(parents=True)
    certificates, secrets = root / "certs", SecretFiles(root / "secrets")
    issuer = CredentialIssuer(certificates)
    for part in parts_of({name: [network.address(name)] for name in (*STORES, *SERVICES)}):
        issuer.issue(part, LIFETIME)
    security = StackCredentials(certificates)
    programs = programs_with_tls()
    assert programs is not None, "there is no Postgres with TLS"
    folder = FaultsFolder(root / "faults")
    folder.make()
    at = {name: f"{network.address(name)}:{PORT}" for name in SERVICES}
    return Deployment(
        root=root,
        network=network,
        security=security,
        folder=folder,
        postgres=TlsPostgres(
            folder=root / "postgres",
            programs=programs,
            address=network.address("postgres"),
            secrets=secrets,
            security=security,
        ),
        nats=TlsNats(
            server=NatsServer(
                folder=root / "nats",
                secrets=secrets,
                port=NATS_PORT,
                monitor_port=MONITOR_PORT,
                security=security.credentials_for("nats"),
            ),
            address=network.address("nats"),
        ),
        addresses=ServiceAddresses(
            **at,
            nats_url=f"tls://{network.address('nats')}:{NATS_PORT}",
            postgres_dsn=f"postgresql://{network.address('postgres')}/trinity",
            security_dir=str(security.credentials_for(OPERATOR).folder),
        ),
    )


def _surroundings(
    deployment: Deployment, environment: Mapping[str, Mapping[str, str]]
) -> StackContext:
    secrets = SecretFiles(deployment.root / "addresses")
    return StackContext(
        job_dir=deployment.root,
        log_level="INFO",
        addresses=deployment.addresses,
        files=InfrastructureFiles(
            buffer_nats_url=secrets.write_secret("buffer-nats", deployment.nats.url("buffer")),
            explorer_nats_url=secrets.write_secret(
                "explorer-nats", deployment.nats.url("explorer")
            ),
            buffer_postgres_dsn=secrets.write_secret(
                "buffer-db", deployment.postgres.dsn("buffer")
            ),
            synchronizer_postgres_dsn=secrets.write_secret(
                "synchronizer-db", deployment.postgres.dsn("synchronizer")
            ),
        ),
        environment={
            name: {
                VARIABLE: str(deployment.folder.path),
                "TRINITY_BUFFER_FUNCTION_VARIABLES": VARIABLE,
                **environment.get(name, {}),
            }
            for name in SERVICES
        },
        security=deployment.security,
    )


def _run(stack: ExitStack | AsyncExitStack, deployment: Deployment, spec: ProcessSpec) -> None:
    running = _running(spec, deployment.network.command(spec.name, spec.argv))
    deployment.processes[spec.name] = stack.enter_context(running)


@contextmanager
def _running(spec: ProcessSpec, argv: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    with spec.log_file.open("ab") as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | spec.env
        )
    try:
        yield process
    finally:
        process.send_signal(spec.stop_signal)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
