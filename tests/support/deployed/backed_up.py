"""One node whose database is backed up, lost and restored, by the jobs of the compose file."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.support.deployed.by_hand import ByHand, by_hand

JOBS = ("accounts", "migrate-synchronizer", "migrate-buffer")
STORES = ("synchronizer", "buffer")


@dataclass(slots=True)
class Node:
    """Its services with a schema may be stopped and started."""

    by_hand: ByHand
    stores: ExitStack = field(default_factory=ExitStack)

    @property
    def synchronizer(self) -> str:
        return self.by_hand.address("synchronizer")

    @property
    def backups(self) -> Path:
        return self.by_hand.folder / "backups"

    def job(self, *names: str) -> None:
        for name in names:
            done = self.by_hand.run(name)
            assert done.returncode == 0, done.stderr

    def refused(self, name: str) -> str:
        done = self.by_hand.run(name)
        assert done.returncode == 2, done.stderr
        return done.stderr

    def start(self, *names: str) -> None:
        for name in names or STORES:
            self.stores.enter_context(self.by_hand.service(name))
        for name in names or STORES:
            self.by_hand.wait_ready(name)

    def query(self, text: str, database: str = "trinity", *, role: str = "admin") -> list[object]:
        """The rows, or what alone is in them."""
        file = "dsn" if role == "admin" else "postgres-dsn"
        dsn = (self.by_hand.secrets / role / file).read_text()
        with psycopg.connect(dsn, dbname=database, autocommit=True) as connection:
            found = connection.execute(text.encode())
            rows = found.fetchall() if found.description else []
        return [row[0] if len(row) == 1 else row for row in rows]

    def lose_database(self) -> None:
        """Stops the two services, and leaves the database's server as one that was just made."""
        self.stores.close()
        self.query("DROP DATABASE trinity WITH (FORCE)", "postgres")
        self.query("DROP ROLE buffer, synchronizer, backup", "postgres")

    def command(self, name: str) -> subprocess.Popen[str]:
        """A job that the caller waits for, or kills."""
        return subprocess.Popen(
            self.by_hand._command(name),
            env=self.by_hand._environment(name),
            cwd=self.by_hand.folder,
            stderr=subprocess.PIPE,
            text=True,
        )


@contextmanager
def backed_up_node(folder: Path, modules: Mapping[str, str] | None = None) -> Iterator[Node]:
    """A node with accounts and schemas; no service runs."""
    with by_hand(folder, modules=modules) as services:
        node = Node(services)
        for job in ("backup", "restore"):
            variables = services.compose["services"][job]["environment"]
            variables[f"TRINITY_{job.upper()}_FOLDER"] = str(node.backups)
        node.job(*JOBS)
        with node.stores:
            yield node
