"""Start what deploy/compose.yaml describes as plain processes, each with the Python it is given."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.infra_fixtures import running
from trinity.run.deploy.secret_folder import ServerAddresses, write_secrets
from trinity.run.local import binaries
from trinity.run.local.addresses import free_port
from trinity.run.local.postgres import PostgresServer
from trinity.run.local.process_spec import ProcessSpec
from trinity.runtime.security.secret_files import SecretFiles
from trinity.runtime.shipped import shipped

REPOSITORY = Path(__file__).resolve().parents[3]
JOB_SECONDS = 600.0
READY_SECONDS = 600.0
OWN_PORTS = ("50051", "50052", "50053", "50054")


@dataclass(slots=True, kw_only=True)
class ByHand:
    """One node: a database and a broker as the manifests configure them, and processes on demand.

    with by_hand(folder) as node:
        node.run("accounts"); node.run("migrate-buffer")
        with node.service("buffer"): assert node.wait_ready("buffer")
    """

    folder: Path
    pythons: Mapping[str, Path] = field(default_factory=dict)
    """By image; those not named use this process's own."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """By image: what is started in place of `services.<name>`."""
    compose: dict[str, dict[str, Any]]
    ports: dict[str, int]

    @property
    def secrets(self) -> Path:
        return self.folder / "secrets"

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        """A job, to its end."""
        return subprocess.run(
            self._command(name),
            env=self._environment(name),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
        )

    @contextmanager
    def service(self, name: str) -> Iterator[Path]:
        """A service; answers the file of its log."""
        log_file = self.folder / f"{name}.log"
        with log_file.open("ab") as log:
            process = subprocess.Popen(
                self._command(name),
                env=self._environment(name),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        try:
            yield log_file
        finally:
            process.terminate()
            assert process.wait(30) == 0, log_file.read_text()

    def probe(self, name: str, *options: str) -> subprocess.CompletedProcess[str]:
        """The question of the container's health check."""
        return subprocess.run(
            [str(self._python(name)), "-m", "trinity.run.deploy.probe", name, *options],
            env=self._environment(name),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def wait_ready(self, name: str) -> None:
        """Return when the health check of the container would be content."""
        deadline = time.monotonic() + READY_SECONDS
        while (answer := self.probe(name, "--ready")).returncode != 0:
            assert answer.returncode == 1, answer.stderr
            assert time.monotonic() < deadline, answer.stderr

    def address(self, name: str) -> str:
        """Where a service listens."""
        return self._environment(name)[f"TRINITY_{name.upper()}_LISTEN"]

    def _command(self, name: str) -> list[str]:
        service = self._described(name)
        image = str(service["image"]).removeprefix("trinity-").partition(":")[0]
        default = ["python", "-P", "-m", self.modules.get(image, f"services.{image}")]
        _, *entry = service.get("entrypoint", default)
        return [str(self._python(name)), *entry, *service.get("command", [])]

    def _described(self, name: str) -> dict[str, Any]:
        service: dict[str, Any] = self.compose["services"][name]
        return service

    def _python(self, name: str) -> Path:
        image = str(self._described(name)["image"]).removeprefix("trinity-").partition(":")[0]
        return self.pythons.get(image, Path(sys.executable))

    def _environment(self, name: str) -> dict[str, str]:
        """The container's variables, with this node's ports and files; nothing of our own."""
        service = self._described(name)
        variables = {key: self._here(str(value)) for key, value in service["environment"].items()}
        kept = {key: os.environ[key] for key in ("PATH", "PYTHONPATH") if key in os.environ}
        marks = {key: value for key, value in os.environ.items() if key.startswith("TRINITY_TEST_")}
        if self.modules:
            kept["PYTHONPATH"] = str(REPOSITORY)
        if self.pythons:
            kept.pop("PYTHONPATH", None)  # an image has its own files only
        return {**kept, **marks, **variables}

    def _here(self, value: str) -> str:
        if unset := re.fullmatch(r"\$\{\w+:-(.*)\}", value):
            return unset[1]
        if secret := re.fullmatch(r"/run/secrets/(.+)", value):
            return str(self.folder / self.compose["secrets"][secret[1]]["file"])
        address, colon, port = value.partition(":")
        return f"{address}:{self.ports[port]}" if colon and port in self.ports else value


@contextmanager
def by_hand(
    folder: Path,
    pythons: Mapping[str, Path] | None = None,
    modules: Mapping[str, str] | None = None,
) -> Iterator[ByHand]:
    """A database without accounts, a broker with the shipped configuration, and who uses them."""
    postgres_port, nats_port = free_port(), free_port()
    places = ServerAddresses(postgres=f"127.0.0.1:{postgres_port}", nats=f"127.0.0.1:{nats_port}")
    write_secrets(folder / "secrets", places)
    compose = yaml.safe_load((shipped("deploy") / "compose.yaml").read_text())
    ports = {port: free_port() for port in OWN_PORTS}
    with ExitStack() as stack:
        stack.enter_context(running(_postgres(folder, postgres_port)))
        stack.enter_context(running(_nats(folder, nats_port)))
        yield ByHand(
            folder=folder,
            pythons=pythons or {},
            modules=modules or {},
            compose=compose,
            ports=ports,
        )


def _postgres(folder: Path, port: int) -> ProcessSpec:
    """The launcher's own server, but without its accounts: those are the accounts job's to make."""
    server = PostgresServer(
        folder=folder / "postgres",
        secrets=SecretFiles(folder / "secrets" / ".passwords"),
        port=port,
        programs=binaries.postgres_programs(),
        fsync=False,
    )
    return server.prepare_process(folder / "postgres.log")


def _nats(folder: Path, port: int) -> ProcessSpec:
    """deploy/nats/nats.conf with this test's port and folder."""
    place = folder / "nats"
    (place / "users").mkdir(parents=True)
    text = (shipped("deploy") / "nats" / "nats.conf").read_text()
    for old, new in (
        ("port: 4222", f"host: 127.0.0.1\nport: {port}"),
        ("127.0.0.1:8222", f"127.0.0.1:{free_port()}"),
        ("store_dir: /data", f'store_dir: "{place}"'),
    ):
        assert old in text
        text = text.replace(old, new)
    (place / "nats.conf").write_text(text)
    users = (folder / "secrets" / "nats" / "users.conf").read_text()
    (place / "users" / "users.conf").write_text(users)
    argv = [str(binaries.nats_server()), "-c", str(place / "nats.conf")]
    return ProcessSpec(name="nats", argv=argv, log_file=folder / "nats.log")
