"""A broker and a database that are there already."""

import pytest

from tests.e2e.conftest import End, Launch, end_of

pytestmark = pytest.mark.timeout(900)


def test_a_run_uses_the_broker_and_the_database_that_it_is_given(
    launch: Launch, undisturbed_end: End, nats_url: str, postgres_dsn: str
) -> None:
    run = launch("given")
    run.start(TRINITY_NATS_URL=nats_url, TRINITY_POSTGRES_DSN=postgres_dsn)
    assert run.wait() == 0, run.text
    assert not (run.job_dir / "infra/postgres").exists()
    assert not (run.job_dir / "infra/nats").exists()
    assert end_of(run) == undisturbed_end
