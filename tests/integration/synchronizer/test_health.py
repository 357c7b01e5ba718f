"""Readiness follows the database."""

import signal

from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.integration.synchronizer.conftest import (
    TIMEOUT,
    running_synchronizer,
)
from tests.support.infra_fixtures import RestartablePostgres

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_frozen_database_makes_it_live_but_not_ready(
    restartable_postgres: RestartablePostgres,
) -> None:
    dsn = restartable_postgres.server.dsn("synchronizer")
    async with running_synchronizer(dsn) as synchronizer:
        restartable_postgres.send_signal(signal.SIGSTOP)
        await synchronizer.wait_health(NOT_SERVING)
        live = health_pb2.HealthCheckRequest()
        health = health_pb2_grpc.HealthStub(synchronizer.channel)
        assert (await health.Check(live, timeout=TIMEOUT)).status == SERVING
        restartable_postgres.send_signal(signal.SIGCONT)
        await synchronizer.wait_health(SERVING)
        await synchronizer.created()
