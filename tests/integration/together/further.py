"""One more explorer or trainer beside those of a running stack, with the settings of the first."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.infra_fixtures import running
from tests.support.model_free.stack import MODULES
from trinity.run.local.addresses import InfrastructureFiles, ServiceAddresses, free_port
from trinity.run.local.process_spec import ProcessSpec
from trinity.run.local.services import StackContext, service_processes


@dataclass(frozen=True, slots=True)
class Further:
    """The process and where it serves."""

    process: subprocess.Popen[bytes]
    address: str


@contextmanager
def further(
    service: str,
    job_dir: Path,
    addresses: ServiceAddresses,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Further]:
    """Run it for the length of the block; the block may end it before."""
    address = f"127.0.0.1:{free_port()}"
    around = StackContext(
        job_dir=job_dir,
        log_level="INFO",
        addresses=replace(addresses, **{service: address}),
        files=_files_in(job_dir / "infra" / "secrets"),
        environment={service: environment or {}},
    )
    with running(_spec(around, service)) as process:
        yield Further(process, address)


def _spec(around: StackContext, service: str) -> ProcessSpec:
    (spec,) = (one.spec for one in service_processes(around) if one.spec.name == service)
    argv = [*spec.argv[: spec.argv.index("-m")], "-m", MODULES[service]]
    assert sys.executable in argv
    port = getattr(around.addresses, service).rpartition(":")[2]
    log_file = spec.log_file.with_name(f"{service}-{port}.log")
    return replace(spec, argv=argv, log_file=log_file)


def _files_in(secrets: Path) -> InfrastructureFiles:
    return InfrastructureFiles(
        buffer_nats_url=secrets / "buffer-nats-url",
        explorer_nats_url=secrets / "explorer-nats-url",
        buffer_postgres_dsn=secrets / "buffer-postgres-dsn",
        synchronizer_postgres_dsn=secrets / "synchronizer-postgres-dsn",
    )
