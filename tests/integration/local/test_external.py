"""A broker and a database that were named instead of started."""

from pathlib import Path

import pytest

from tests.integration.local.stacks import no_services
from tests.support.infra_fixtures import NatsUnderTest
from trinity.errors import UserError
from trinity.run.local.addresses import free_port
from trinity.run.local.infrastructure import ExternalServers
from trinity.run.local.stack import LocalStack


async def test_a_named_broker_and_database_are_used_and_nothing_else_is_started(
    tmp_path: Path, nats_server: NatsUnderTest, postgres_dsn: str
) -> None:
    externals = ExternalServers(nats_url=nats_server.url, postgres_dsn=postgres_dsn)
    async with LocalStack(job_dir=tmp_path, externals=externals, services=no_services) as stack:
        assert stack.pids == {}
        secrets = tmp_path / "infra" / "secrets"
        assert (secrets / "explorer-nats-url").read_text() == nats_server.url
        assert (secrets / "buffer-postgres-dsn").read_text() == postgres_dsn


@pytest.mark.parametrize("scheme", ["nats", "postgresql"])
async def test_an_address_that_does_not_answer_is_named_without_its_password(
    tmp_path: Path, scheme: str
) -> None:
    port = free_port()
    address = f"{scheme}://someone:secret@127.0.0.1:{port}"
    if scheme == "nats":
        externals = ExternalServers(nats_url=address)
    else:
        externals = ExternalServers(postgres_dsn=f"{address}/trinity")
    with pytest.raises(UserError, match=rf"127\.0\.0\.1:{port}.*does not answer") as refusal:
        async with LocalStack(job_dir=tmp_path, externals=externals, services=no_services):
            pass
    assert "secret" not in str(refusal.value)


def test_addresses_come_from_variables_or_files(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://a:b@host/trinity\n")
    variables = {
        "TRINITY_NATS_URL": "nats://host:4222",
        "TRINITY_POSTGRES_DSN_FILE": str(tmp_path / "dsn"),
    }
    assert ExternalServers.from_environment(variables) == ExternalServers(
        "nats://host:4222", "postgresql://a:b@host/trinity"
    )
    with pytest.raises(UserError, match="Both TRINITY_POSTGRES_DSN and TRINITY_POSTGRES_DSN_FILE"):
        ExternalServers.from_environment(
            variables | {"TRINITY_POSTGRES_DSN": "postgresql://other/x"}
        )
