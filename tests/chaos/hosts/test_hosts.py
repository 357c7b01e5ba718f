"""Parts on hosts of their own, with links cut and slow: nothing is lost, nothing done twice."""

import asyncio
import sys
from pathlib import Path

import psycopg
import pytest

from tests.chaos.hosts.deployment import Deployment, deployed
from tests.chaos.hosts.holder import take
from tests.chaos.hosts.network import Slowness, why_not
from tests.chaos.hosts.outage import Outage, cut_until_told, wait_for_step
from tests.chaos.hosts.stores import programs_with_tls
from tests.chaos.hosts.trial import Trials

NUM_STEPS = 10
TOLD_SECONDS = 60.0
"""Much more than it takes, for machines with a lot to do."""
SLOW = Slowness(delay_seconds=0.05, loss=0.01, bytes_per_second=2e6)

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def _what_hosts_need() -> None:
    if reason := why_not():
        pytest.skip(reason)
    if programs_with_tls() is None:
        pytest.skip("a database off loopback needs an installed Postgres with TLS; there is none")


async def test_what_is_cut_is_named_and_heals_and_what_is_slow_only_takes_longer(
    tmp_path: Path,
) -> None:
    async with deployed(tmp_path / "hosts") as deployment:
        trials = Trials(deployment=deployment, num_steps=NUM_STEPS)
        weights = await trials.undisturbed()
        outages: list[Outage] = []

        async def cut_twice(experiment_id: str) -> None:
            for step, link, way in (
                (2, ("buffer", "postgres"), "both"),
                (5, ("trainer", "buffer"), "back"),
            ):
                await wait_for_step(deployment, experiment_id, step)
                outages.append(
                    await cut_until_told(deployment, experiment_id, link, way, TOLD_SECONDS)
                )

        assert await trials.disturbed("cut", cut_twice, weights) == {}
        for outage in outages:
            assert outage.told_after is not None, f"nobody said that {outage.link} is cut"
            assert outage.logged_after is not None, f"no log says that {outage.link} is cut"
            assert outage.healed_after is not None, f"{outage.link} did not heal"
        with deployment.network.slowed("explorer", SLOW):
            assert await trials.disturbed("slow", _nothing, weights) == {}
        await _assert_that_locks_are_let_go(deployment)
        await _assert_that_a_password_is_not_enough(deployment)


async def _nothing(_: str) -> None:
    return


async def _assert_that_locks_are_let_go(deployment: Deployment) -> None:
    """A session of a service that the database does not hear from any more ends with its locks."""
    dsn, network = deployment.postgres.dsn("buffer"), deployment.network
    argv = network.command("buffer", [sys.executable, "-m", "tests.chaos.hosts.holder", dsn])
    holder = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert await holder.stdout.readline() == b"locked\n"
        with network.cut(("buffer", "postgres"), ("postgres", "buffer")):
            async with asyncio.timeout(TOLD_SECONDS):
                await take(dsn)
    finally:
        holder.kill()
        await holder.wait()


async def _assert_that_a_password_is_not_enough(deployment: Deployment) -> None:
    """The database, too, takes only who shows a certificate."""
    dsn = f"{deployment.postgres.dsn('buffer')}&sslcertmode=disable"
    with pytest.raises(psycopg.OperationalError, match="valid client certificate"):
        await psycopg.AsyncConnection.connect(dsn)
