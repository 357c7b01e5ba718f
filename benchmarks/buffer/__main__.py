"""Measures the buffer's speed, beside the raw limits and the peers of the same run.

python -m benchmarks.buffer [--runs 5] [--cores 2,3] [--without-peers] [--json FILE]

Everything is real: broker, database, the buffer's process and our two clients, each a process,
all on the same few cores. *Raw* is what two bare processes do with the same bytes: publish with
acknowledgement, COPY and commit; read and mark rows. Ray's queue actor and TransferQueue run in an
environment of their own, made under build/peers; they keep nothing.

Every figure is the median of as many runs, with the lowest and the highest beside it; those of a
growing stage and of memory are described in age.py and ours.py.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.buffer import age, limits, ours
from benchmarks.buffer.peers import environment
from benchmarks.buffer.plans import BATCH_ROWS
from benchmarks.buffer.report import as_json, print_table
from benchmarks.buffer.sizes import Sizes
from benchmarks.buffer.stack import pin, running_stack

ROOT = Path(__file__).resolve().parent.parent.parent
PEER_ROWS = 100_000
"""They keep rows in memory: what a million would take is not asked of them."""
Runs = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--cores", default=last_cores(), help="which cores all of it runs on (%(default)s)"
    )
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/buffer.json")
    arguments = parser.parse_args()
    python = None if arguments.without_peers else environment.prepare(ROOT / "build/peers")
    cores = {int(core) for core in arguments.cores.split(",")}
    pin(cores)
    load = os.getloadavg()[0]
    own, raw = asyncio.run(measure(Sizes(), arguments.runs))
    sizes = peer_sizes(Sizes(), arguments.runs, cores)
    peers: dict[str, environment.Figures | str] = {}
    for name in ("", *(environment.PEERS if python else {})):
        if python and name:
            peers[name] = asyncio.run(environment.measure(python, name, sizes))
        record = as_json(own, raw, peers)
        record |= {"runs": arguments.runs, "cores": len(cores)}
        record |= {"load_before": load, "load_after": os.getloadavg()[0]}
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    print_table(record, list(peers))


def last_cores() -> str:
    """The last two that this process may use: the first ones have the system's own work."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[-2:])


async def measure(sizes: Sizes, num_runs: int) -> tuple[Runs, Runs]:
    """Our figures and the raw ones, run after run beside each other."""
    own: Runs = defaultdict(list)
    raw: Runs = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with running_stack(folder) as stack:
            for _ in range(num_runs):
                _add(raw, await limits.measure(stack, sizes))
                _add(own, await ours.measure(stack, folder, sizes))
    with tempfile.TemporaryDirectory() as directory:
        async for own_figures, raw_figures in age.measure(Path(directory), sizes, num_runs):
            _add(own, own_figures)
            _add(raw, raw_figures)
    for _ in range(num_runs):
        with tempfile.TemporaryDirectory() as directory:
            _add(own, await ours.measure_memory(Path(directory), sizes))
    return own, raw


def _add(runs: Runs, figures: dict[str, float]) -> None:
    for name, value in figures.items():
        runs[name].append(value)


def peer_sizes(sizes: Sizes, num_runs: int, cores: set[int]) -> dict[str, object]:
    """The same amounts, for the peers' scripts."""
    return {
        "cores": sorted(cores),
        "runs": num_runs,
        "batch": BATCH_ROWS,
        "large": sizes.large_steps * BATCH_ROWS,
        "small": sizes.small_steps * BATCH_ROWS,
        "huge": sizes.huge_steps * BATCH_ROWS,
        "awaited": sizes.awaited,
        "outstanding": sizes.outstanding,
        "leases": sizes.leases * BATCH_ROWS,
        "wakes": sizes.wakes,
        "load_seconds": sizes.load_seconds / 6,
        "few_rows": sizes.few_steps * BATCH_ROWS,
        "many_rows": PEER_ROWS,
    }


if __name__ == "__main__":
    main()
