"""A replica that is frozen within a transaction holds up the others for a bounded time only."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.integration import freezing
from tests.integration.synchronizer.builders import publication, weights
from tests.integration.synchronizer.conftest import TIMEOUT, Running
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.local.addresses import free_port
from trinity.runtime.rpc.channel import open_channel

PUBLISHING = "services.synchronizer.store.versions:publish"


@contextmanager
def freezing_process(dsn: str, address: str) -> Iterator[int]:
    """The process id of a synchronizer that stops itself while it publishes."""
    settings = {"LISTEN": address, "POSTGRES_DSN": dsn, "IDLE_TRANSACTION_SECONDS": "1"}
    variables = {f"TRINITY_SYNCHRONIZER_{name}": value for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", freezing.MODULE, "services.synchronizer"],
        env={**os.environ, **variables, freezing.VARIABLE: PUBLISHING},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def test_weights_that_a_frozen_replica_was_publishing_are_published_by_another(
    synchronizer: Running, synchronizer_dsn: str
) -> None:
    experiment = (await synchronizer.created()).experiment
    request = publication(experiment.id, weights(experiment.stages[0].name, 0))
    address = f"127.0.0.1:{free_port()}"
    with freezing_process(synchronizer_dsn, address) as pid:
        async with open_channel(address) as channel:
            stub: SynchronizerServiceStub = SynchronizerServiceStub(channel)
            asking = stub.PublishVersion(request, timeout=TIMEOUT, wait_for_ready=True)
            await freezing.stopped(pid)
            await synchronizer.stub.PublishVersion(request, timeout=TIMEOUT)
            os.kill(pid, signal.SIGCONT)
            await asking  # the channel has asked again: to publish the same twice changes nothing
