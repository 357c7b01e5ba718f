"""Measures the memory of the buffer's process while a selector learns of a million tasks.

python -m benchmarks.selector_memory [--tasks 1000000] [--steps 3] [--json FILE]

A taskset of that many rows is read, its pass rates of a weak and a strong model are taken out of
it, and `difficulty_based` draws from all of them and learns, step after step. The peak is what the
kernel says of the process since its start (VmHWM).
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from benchmarks.own_buffer import own_buffer
from benchmarks.table import PerformanceClaim, print_claims
from tests.integration.buffer.harness import talk_to
from tests.integration.buffer.plans import rollout_plan
from tests.integration.buffer.process import BufferProcess
from trinity.config.plan.stage_plan import StagePlan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/selector_memory.json"
AIM_MB = 250.0
SELECTOR = {
    "selector_type": "difficulty_based",
    "feature_keys": ["weak", "strong"],
    "kwargs": {"target_reward": 0.5, "tau": 0.05, "do_sample": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    peaks = asyncio.run(peaks_of(arguments.tasks, arguments.steps))
    for moment, peak in peaks.items():
        print(f"{moment}: {peak:.0f} MB")
    claims = [
        PerformanceClaim("the buffer's process at its peak, MB", max(peaks.values()), AIM_MB, "<=")
    ]
    print_claims(claims)
    values = {"tasks": arguments.tasks, "peaks_mb": peaks}
    claimed = [claim.as_json() for claim in claims]
    arguments.json.write_text(json.dumps({**values, "claims": claimed}, indent=2) + "\n")


async def peaks_of(num_tasks: int, num_steps: int) -> dict[str, float]:
    """The peak so far, after each thing that the buffer does."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        plan = _plan(root, num_tasks, num_steps)
        async with own_buffer(root) as process:
            return await _work(process, plan, num_steps)


def _plan(root: Path, num_tasks: int, num_steps: int) -> StagePlan:
    file = root / "tasks.jsonl"
    with file.open("w") as stream:
        for i in range(num_tasks):
            row = {"prompt": f"{i}+{i}=", "response": str(2 * i), "weak": 0.1}
            stream.write(json.dumps({**row, "strong": i / num_tasks}) + "\n")
    taskset = {"name": "many", "path": str(file), "data_selector": SELECTOR}
    given = {"taskset": taskset, "eval_tasksets": []}
    return rollout_plan(root, total_steps=num_steps, explorer_input=given)


async def _work(process: BufferProcess, plan: StagePlan, num_steps: int) -> dict[str, float]:
    assert process.process is not None
    pid = process.process.pid
    peaks = {"started": _peak_mb(pid)}
    begun = time.monotonic()
    async with talk_to(process) as buffer:
        await buffer.open(plan)
        peaks["tasks read and stage opened"] = _peak_mb(pid)
        await buffer.begin()
        await buffer.record(0)
        for step in range(1, num_steps + 1):
            granted = (await buffer.lease()).assignments
            await buffer.finish_all(granted)
            await buffer.batch(step)
            await buffer.report(step)
            await buffer.record(step)
            peaks[f"step {step} drawn, learned from and trained"] = _peak_mb(pid)
    print(f"{time.monotonic() - begun:.0f} s on {os.cpu_count()} cores")
    return peaks


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return float(line.split()[1]) * 1024 / 1e6


if __name__ == "__main__":
    main()
