"""Sandboxes: the time until one answers, one at a time, and many at once.

python -m benchmarks.sandbox [--starts 50] [--at-once 200] [--json FILE]
chrt -r 1 python -m benchmarks.sandbox    # on a machine that does other work: ours goes first

A start is over once the sandbox has answered its first request, a program that ends at once.
Those at once are all open, and each has answered, before the first one ends. Their memory is that
of both processes of each, with shared pages divided among them (PSS). The ways out of a sandbox are
tried by tests/unit/runtime/test_sandbox.py.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import time
from pathlib import Path

import psutil

from benchmarks.table import PerformanceClaim, print_claims
from trinity.runtime.process.sandbox import SandboxSpec, open_sandbox

ROOT = Path(__file__).resolve().parent.parent
MOST_MILLISECONDS = 100.0
SPEC = SandboxSpec(memory_bytes=256 * 1024**2, disk_bytes=64 * 1024**2, max_processes=64)
SECONDS = 300.0


def main() -> None:
    """Measures and writes the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=50)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/sandbox.json")
    arguments = parser.parse_args()
    load = os.getloadavg()
    starts = asyncio.run(_one_at_a_time(arguments.starts))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    together = asyncio.run(_at_once(arguments.at_once))
    claims = [
        PerformanceClaim(
            "a start, one at a time, milliseconds (median)",
            statistics.median(starts),
            MOST_MILLISECONDS,
            "<=",
        ),
        PerformanceClaim("sandboxes open at once", together["open"], arguments.at_once, ">="),
    ]
    print_claims(claims)
    record = {
        "claims": [claim.as_json() for claim in claims],
        "starts": {
            "milliseconds": [round(start, 1) for start in sorted(starts)],
            "processor_milliseconds": 1000 * (used.ru_utime + used.ru_stime) / len(starts),
        },
        "at_once": together,
        "machine": {"load_average": load, "num_cores": os.cpu_count()},
    }
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


async def _one_at_a_time(number: int) -> list[float]:
    """Returns the milliseconds of each start and first command."""
    starts = []
    for _ in range(number):
        begin = time.perf_counter()
        async with open_sandbox(SPEC) as sandbox:
            outcome = await sandbox.run(["true"], seconds=SECONDS)
            starts.append(1000 * (time.perf_counter() - begin))
            assert outcome.code == 0
    return starts


async def _at_once(number: int) -> dict[str, float]:
    """Opens all, counts those that answer while all are open, and ends them."""
    begin = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        opened = [stack.enter_async_context(open_sandbox(SPEC)) for _ in range(number)]
        sandboxes = await asyncio.gather(*opened)
        began = time.perf_counter()
        outcomes = await asyncio.gather(
            *(sandbox.run(["echo", "here"], seconds=SECONDS) for sandbox in sandboxes)
        )
        answered = time.perf_counter()
        memory = _memory_bytes()
    return {
        "open": sum(outcome.output == b"here\n" for outcome in outcomes),
        "seconds_until_all_are_open": began - begin,
        "seconds_of_a_command_in_each": answered - began,
        "mebibytes_each": memory / number / 1024**2,
        "seconds_until_all_have_ended": time.perf_counter() - answered,
    }


def _memory_bytes() -> int:
    children = psutil.Process().children(recursive=True)
    return sum(int(child.memory_full_info().pss) for child in children)


if __name__ == "__main__":
    main()
