"""A stack under attack: what ran in it before must stay, what runs in it must end as in peace."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psycopg
from psycopg import sql

from tests.integration.hostile.victim import cancel_all
from tests.integration.hostile.vitals import SERVICES, ValidCalls, Vitals, vitals_of
from tests.support.model_free.experiment import experiment_plan, final_weights, run_to_end
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.run.local.addresses import ServiceAddresses
from trinity.run.local.stack import LocalStack

STEPS = 4
RUN_SECONDS = 120.0
SCHEMAS = ("buffer", "synchronizer")
NOT_KEPT = "member"
"""Who lives: each describes itself anew all the time."""


@dataclass(slots=True, kw_only=True)
class Arena:
    """A running stack in which one experiment has ended in peace."""

    stack: LocalStack
    root: Path
    job_dir: Path
    calm: pb.Experiment

    @classmethod
    async def prepare(cls, stack: LocalStack, root: Path, job_dir: Path) -> Self:
        """Run the first experiment."""
        arena = cls(stack=stack, root=root, job_dir=job_dir, calm=pb.Experiment())
        arena.calm = await arena.run("calm")
        return arena

    @property
    def at(self) -> ServiceAddresses:
        return self.stack.addresses

    @property
    def vitals(self) -> dict[str, Vitals]:
        """Every service now, by its name."""
        return vitals_of(self.stack, self.job_dir)

    @property
    def explorer_nats_url(self) -> str:
        return self._secret("explorer-nats-url")

    @property
    def buffer_dsn(self) -> str:
        return self._secret("buffer-postgres-dsn")

    async def run(self, name: str) -> pb.Experiment:
        """The same short experiment under another name, to its end."""
        plan = experiment_plan(self.root, name=name, buffer={"total_steps": STEPS})
        async with asyncio.timeout(RUN_SECONDS):
            return await run_to_end(self.at.synchronizer, plan)

    def rows(self) -> dict[str, str]:
        """A digest of all rows of the first experiment, by table."""
        found: dict[str, str] = {}
        for schema in SCHEMAS:
            with psycopg.connect(self._secret(f"{schema}-postgres-dsn")) as connection:
                found |= _digests(connection, schema, self.calm.id)
        return found

    @contextlib.asynccontextmanager
    async def unharmed(self, name: str) -> AsyncIterator[ValidCalls]:
        """Whatever the block does: an experiment beside it and one after it end as in peace.

        Valid calls are answered all the time, no service is started anew, no row changes.
        """
        before, rows = self.vitals, self.rows()
        valid = ValidCalls(self.at, self.calm.id)
        async with asyncio.TaskGroup() as tasks:
            beside = tasks.create_task(self.run(f"{name}-beside"))
            async with valid.going_on():
                yield valid
        await cancel_all(self.at)
        after = await self.run(f"{name}-after")
        for ended in (beside.result(), after):
            assert final_weights(ended) == final_weights(self.calm), ended.reason
        now = self.rows()
        changed = {name for name in rows if now[name] != rows[name]}
        assert not changed, changed
        assert {one: self.vitals[one].pid for one in SERVICES} == {
            one: before[one].pid for one in SERVICES
        }

    def _secret(self, name: str) -> str:
        return (self.job_dir / "infra" / "secrets" / name).read_text()


@contextlib.asynccontextmanager
async def arena_in(root: Path) -> AsyncIterator[Arena]:
    """Start one; a service that dies is not started again."""
    job_dir = experiment_plan(root).job_path
    async with model_free_stack(job_dir, max_restarts=0) as stack:
        yield await Arena.prepare(stack, root, job_dir)


def _digests(
    connection: "psycopg.Connection[tuple[object, ...]]", schema: str, experiment_id: str
) -> dict[str, str]:
    tables = connection.execute(
        "SELECT table_name FROM information_schema.columns"
        " JOIN information_schema.tables USING (table_schema, table_name)"
        " WHERE table_schema = %s AND column_name = 'experiment_id' AND table_name <> %s"
        " AND table_type = 'BASE TABLE'",  # a view's means depend on the order of its rows
        [schema, NOT_KEPT],
    ).fetchall()
    digest = "SELECT md5(string_agg(one::text, '|' ORDER BY one::text)) FROM {} one WHERE {} = %s"
    column = sql.Identifier("experiment_id")
    found = {}
    for (table,) in tables:
        query = sql.SQL(digest).format(sql.Identifier(schema, str(table)), column)
        row = connection.execute(query, [experiment_id]).fetchone()
        found[f"{schema}.{table}"] = str(row[0]) if row else ""
    return found
