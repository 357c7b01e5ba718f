"""Experiments of two tenants on one buffer and one synchronizer know nothing of one another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
from psycopg import sql

from tests.integration.together.further import further
from tests.integration.together.seen import Row, members, rows
from tests.support.model_free.alone import weights_of
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.experience_pb2 import RunResultBatch
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.run.local.stack import LocalStack
from trinity.runtime.subjects import RUNS_PREFIX, runs_subject
from trinity.weights.manifest import MANIFEST_NAME

Tenancy = set[tuple[str, str]]
"""Tenants with their experiments."""


async def test_two_tenants_and_a_queue_end_as_each_alone(tmp_path: Path, calm_weights: str) -> None:
    """The second tenant's run and the queued one are equal: so must be what they end with."""
    plans = [
        experiment_plan(tmp_path / "left", tenant="left"),
        experiment_plan(tmp_path / "right", tenant="right", seed=8),
        experiment_plan(tmp_path / "left", tenant="left", name="queued", seed=8),
    ]
    job_dir = tmp_path / "stack"
    async with one_pair_each(job_dir, "left", "right") as stack, subjects(job_dir) as published:
        at = stack.addresses
        started = [await start_experiment(at.synchronizer, plan) for plan in plans]
        ended = [await wait_until_ended(at.synchronizer, one.id) for one in started]
        alone, other, queued = map(weights_of, ended)
        assert alone == calm_weights
        assert other == queued != alone
        await check_tables(job_dir, started)
        await check_who_worked(job_dir, stack, {at.explorer, at.trainer})
    check_subjects(published, started)
    check_directories(plans, ended)


@asynccontextmanager
async def one_pair_each(job_dir: Path, first: str, second: str) -> AsyncIterator[LocalStack]:
    """An explorer and a trainer for each tenant; everything else they share."""

    def bound_to(tenant: str) -> dict[str, dict[str, str]]:
        services = ("explorer", "trainer")
        return {name: {f"TRINITY_{name.upper()}_TENANT": tenant} for name in services}

    theirs = bound_to(second)
    async with model_free_stack(job_dir, environment=bound_to(first)) as stack:
        at = stack.addresses
        with (
            further("explorer", job_dir, at, theirs["explorer"]),
            further("trainer", job_dir, at, theirs["trainer"]),
        ):
            yield stack


@asynccontextmanager
async def subjects(job_dir: Path) -> AsyncIterator[dict[str, Tenancy]]:
    """By subject, whose results were published there; filled while the block lasts."""
    published: dict[str, Tenancy] = {}

    async def note(message: nats.aio.msg.Msg) -> None:
        batch = RunResultBatch.FromString(message.data)
        whose = {(result.tenant, result.experiment_id) for result in batch.results}
        published.setdefault(message.subject, set()).update(whose)

    client = await nats.connect((job_dir / "infra" / "secrets" / "admin-nats-url").read_text())
    await client.subscribe(f"{RUNS_PREFIX}.>", cb=note)
    yield published
    async with asyncio.timeout(10.0):
        await client.drain()


def check_subjects(published: dict[str, Tenancy], started: list[pb.Experiment]) -> None:
    assert published == {
        runs_subject(one.tenant, one.id, "rft"): {(one.tenant, one.id)} for one in started
    }


async def check_tables(job_dir: Path, started: list[pb.Experiment]) -> None:
    """Every table that names a tenant names each experiment with its own.

    A member's is the tenant of its token, and here there are none.
    """
    expected = {(one.tenant, one.id) for one in started}
    for service in ("buffer", "synchronizer"):
        tables = await tables_with(job_dir, service, "tenant", "experiment_id")
        assert len(tables) >= 2
        for table in set(tables) - {"member"}:
            found = await tenancy(job_dir, service, table)
            if table == "closed_wait":  # members wait between experiments, too
                found = {
                    (tenant, experiment) for tenant, experiment in found if experiment != "None"
                }
            assert found <= expected, table
            if table in ("stage", "run_attempt", "experience", "batch_item", "checkpoint"):
                assert found == expected, table
    for table in ("taskset", "task"):
        query = sql.SQL("SELECT DISTINCT tenant FROM {}").format(sql.Identifier(table))
        assert set(await rows(job_dir, "buffer", query)) == {("left",), ("right",)}


async def tables_with(job_dir: Path, service: str, *columns: str) -> list[str]:
    query = """SELECT table_name FROM information_schema.columns
        WHERE table_schema = %s AND column_name = ANY(%s) GROUP BY 1 HAVING count(*) = %s"""
    found = await rows(job_dir, service, query, service, list(columns), len(columns))
    return [str(name) for (name,) in found]


async def tenancy(job_dir: Path, service: str, table: str) -> Tenancy:
    query = sql.SQL("SELECT DISTINCT tenant, experiment_id::text FROM {}")
    found = await rows(job_dir, service, query.format(sql.Identifier(table)))
    return {(str(tenant), str(experiment)) for tenant, experiment in found}


async def check_who_worked(job_dir: Path, stack: LocalStack, left: set[str]) -> None:
    """The first pair made everything of its tenant, the second everything of the other."""
    made = """SELECT DISTINCT tenant, producer::text FROM run_attempt
        UNION SELECT tenant, trainer_id::text FROM incarnation"""
    by_id = {one.id: one.address for one in (await members(stack.addresses.synchronizer)).values()}
    worked: set[Row] = {
        (tenant, by_id[str(who)]) for tenant, who in await rows(job_dir, "buffer", made)
    }
    of_left = {(tenant, address) for tenant, address in worked if address in left}
    assert of_left == {("left", address) for address in left}
    assert {tenant for tenant, _ in worked - of_left} == {"right"}


def check_directories(plans: list[ExperimentPlan], ended: list[pb.Experiment]) -> None:
    """Each run left its weights below its own directory, and nothing of another's."""
    for plan, experiment in zip(plans, ended, strict=True):
        weights = plan.job_path / "stages" / "rft" / "weights"
        final = Path(experiment.stages[-1].final_version.path)
        assert final.parent == weights
        assert all((directory / MANIFEST_NAME).exists() for directory in weights.iterdir())
    assert len({plan.job_dir for plan in plans}) == len(plans)
