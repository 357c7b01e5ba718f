"""A gang of two hosts with two ranks each ends in the weights of one host with four."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from examples.addition.model import save_model
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import peers_of, plan_in, ranks_of, running_service
from trinity.api.v1 import synchronizer_pb2
from trinity.local.addresses import free_port

pytestmark = [pytest.mark.timeout(900), pytest.mark.thorough]

SECONDS = 600.0
DONE = synchronizer_pb2.STAGE_STATE_FINISHED
Process = asyncio.subprocess.Process
Disturb = Callable[[Peers, Process], Awaitable[None]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("addition")
    save_model(directory, seed=0)
    return directory


def peers_in(directory: Path, model: Path) -> Peers:
    directory.mkdir()
    return peers_of(plan_in(directory, model, rank_num=4, save_interval=2))


async def final_weights(peers: Peers) -> bytes:
    await peers.until(
        lambda: peers.experiment.stages[0].state == DONE or bool(peers.failure), SECONDS
    )
    assert peers.failure == ""
    return peers.experiment.stages[0].final_version.weights_sha256


async def on_one_host(peers: Peers) -> bytes:
    async with serve_peers(peers) as address, running_service(address):
        return await final_weights(peers)


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
                return await final_weights(peers)
            await disturb(peers, process)
        async with running_service(address, **other):
            return await final_weights(peers)


async def kill_a_host(peers: Peers, process: Process) -> None:
    """The whole of it, between two checkpoints."""
    await peers.until(lambda: peers.stages["sft"].recorded_step >= 3, SECONDS)
    assert len(ranks_of(process)) == 2
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def test_two_by_two_ranks_end_in_the_weights_of_four_also_when_a_host_is_lost(
    tmp_path: Path, model: Path
) -> None:
    expected = await on_one_host(peers_in(tmp_path / "one", model))
    assert await on_two_hosts(peers_in(tmp_path / "two", model)) == expected
    rough = peers_in(tmp_path / "rough", model)
    assert await on_two_hosts(rough, kill_a_host) == expected
    assert rough.stages["sft"].incarnation == 2
