"""A gang of two hosts with two ranks each, over one host with four, in processor seconds.

    python -m benchmarks.trainer.gang_over_hosts [--steps 40] [--repeats 3] [--json FILE]

Both train the model of the addition example on rows of a file, by trainer services on this
machine, whose ranks talk over gloo on loopback. They take turns. Counted are the processor seconds
of services and ranks from the end of the first step until the stage is finished, checkpoints and
published weights included; their weights are compared bit for bit.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from benchmarks.processor_time import cpu_seconds
from examples.addition.model import save_model
from tests.integration.trainer.peers import Peers, serve_peers
from tests.integration.trainer.service import final_weights, peers_of, plan_in, running_service

ROOT = Path(__file__).resolve().parents[2]
AIM = 1.1
SECONDS = 1200.0
RANKS = 4
ADDRESSES = ("127.0.0.1", "127.0.0.2")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    results = ROOT / "benchmarks/results/gang_over_hosts.json"
    parser.add_argument("--json", type=Path, default=results)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        record = asyncio.run(compared(Path(folder), given.steps, given.repeats))
    given.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


async def compared(folder: Path, num_steps: int, repeats: int) -> dict[str, object]:
    """Returns the figures of both, in turns."""
    model = folder / "model"
    model.mkdir()
    save_model(model, seed=0)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    weights: set[bytes] = set()
    for repeat in range(repeats):
        for num_hosts, runs in found.items():
            peers = peers_with_steps(folder / f"{repeat}-{num_hosts}", model, num_steps)
            took, final = await trained(peers, num_hosts)
            runs.append(took)
            weights.add(final)
    assert len(weights) == 1, "hosts change no bit"
    ratios = {
        name: statistics.median(
            of_two[name] / of_one[name] for of_one, of_two in zip(found[1], found[2], strict=True)
        )
        for name in ("processor_seconds", "seconds")
    }
    return {
        "aim": AIM,
        "load_of_the_machine": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "ranks": RANKS,
        "steps": num_steps,
        "ratios": ratios,
        "one_host": found[1],
        "two_hosts": found[2],
    }


def peers_with_steps(directory: Path, model: Path, num_steps: int) -> Peers:
    """Returns a buffer and a synchronizer for one supervised stage of so many steps."""
    directory.mkdir()
    plan = plan_in(directory, model, rank_num=RANKS, save_interval=num_steps)
    first = plan.stages[0].model_copy(update={"total_train_steps": num_steps})
    return peers_of(plan.model_copy(update={"stages": (first, *plan.stages[1:])}))


async def trained(peers: Peers, num_hosts: int) -> tuple[dict[str, float], bytes]:
    """Returns what the stage took after its first step, and its weights."""
    stage = peers.stages["sft"]
    async with serve_peers(peers) as address, services(address, num_hosts) as processes:
        await peers.until(lambda: bool(stage.reports) or bool(peers.failure), SECONDS)
        begun, busy = time.perf_counter(), cpu_seconds(_all_of(processes))
        final = await final_weights(peers, SECONDS)
        took = {
            "processor_seconds": cpu_seconds(_all_of(processes)) - busy,
            "seconds": time.perf_counter() - begun,
        }
    return took, final


@asynccontextmanager
async def services(peers: str, num_hosts: int) -> AsyncIterator[list[psutil.Process]]:
    """Starts the trainer services, each on an address of its own, and yields their processes."""
    if num_hosts == 1:
        async with running_service(peers) as (process, _):
            yield [psutil.Process(process.pid)]
        return
    gang = {"NUM_HOSTS": str(num_hosts)}
    leader, other = ADDRESSES
    async with running_service(peers, HOST="0", GANG_ADDRESS=leader, **gang) as (first, address):
        join = {"HOST": "1", "GANG_ADDRESS": other, "LEADER": address}
        async with running_service(peers, **join, **gang) as (second, _):
            yield [psutil.Process(process.pid) for process in (first, second)]


def _all_of(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Returns the services and their ranks; ranks stay until the service ends."""
    return [
        found for process in processes for found in (process, *process.children(recursive=True))
    ]


if __name__ == "__main__":
    main()
