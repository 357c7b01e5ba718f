"""Infrastructure that stands already, for tests which are about the services only."""

import pytest

from tests.support.infra_fixtures import NatsUnderTest
from trinity.run.local.infrastructure import ExternalServers


@pytest.fixture
def externals(nats_server: NatsUnderTest, postgres_dsn: str) -> ExternalServers:
    return ExternalServers(nats_url=nats_server.url, postgres_dsn=postgres_dsn)
