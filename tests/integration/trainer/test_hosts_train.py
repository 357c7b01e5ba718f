"""A gang of two hosts with two ranks each ends in the weights of one host with four."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from examples.addition.model import save_model
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import (
    final_weights,
    peers_of_four,
    running_service,
)
from tests.support.ranks import ranks_of
from trinity.run.local.addresses import free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

SECONDS = 600.0
Process = asyncio.subprocess.Process
Disturb = Callable[[Peers, Process], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


async def on_one_host(peers: Peers) -> bytes:
    async with serve_peers(peers) as address, running_service(address):
        return await final_weights(peers, SECONDS)


async def on_two_hosts(peers: Peers, disturb: Disturb | None = None) -> bytes:
    leader = f"127.0.0.1:{free_port()}"
    own = {"NUM_HOSTS": "2", "HOST": "0", "GANG_ADDRESS": "127.0.0.1"}
    other = {"NUM_HOSTS": "2", "HOST": "1", "GANG_ADDRESS": "127.0.0.2", "LEADER": leader}
    async with (
        serve_peers(peers) as address,
        running_service(address, leader, **own),
    ):
        async with running_service(address, **other) as (process, _):
            if disturb is None:
                return await final_weights(peers, SECONDS)
            await disturb(peers, process)
        async with running_service(address, **other):
            return await final_weights(peers, SECONDS)


async def kill_a_host(peers: Peers, process: Process) -> None:
    """The whole of it, between two checkpoints."""
    await peers.until(lambda: peers.stages["sft"].recorded_step >= 3, SECONDS)
    assert len(ranks_of(process.pid)) == 2
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def test_two_by_two_ranks_end_in_the_weights_of_four_also_when_a_host_is_lost(
    tmp_path: Path, model: Path
) -> None:
    expected = await on_one_host(peers_of_four(tmp_path / "one", model))
    assert await on_two_hosts(peers_of_four(tmp_path / "two", model)) == expected
    rough = peers_of_four(tmp_path / "rough", model)
    assert await on_two_hosts(rough, kill_a_host) == expected
    assert rough.stages["sft"].incarnation == 2
