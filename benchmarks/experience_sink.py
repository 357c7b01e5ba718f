"""Processor seconds of a step with `experience_buffer.path`, over the same step without it.

python -m benchmarks.experience_sink [--pairs 10] [--json FILE]

The services, the broker and the database are real; engine and learner compute nothing, so a step
costs what the services spend on its rows, and the place that experiences are also written to (a
SQLite file) is as large a share of it as it can be. Counted are the user and system seconds of all
processes of the stack from the report of one train step to that of a later one: starts and ends
are left out. Runs of a pair follow one another, in turns which of them is first, so that other
work on the machine meets both.
"""

import argparse
import asyncio
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.table import Claim, print_claims
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import buffer_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.rpc.channel import open_channel

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS, NUM_UNCOUNTED = 30, 5
NUM_TASKS, REPEATS = 32, 8
MOST = 1.05
WITH, WITHOUT = "with", "without"


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one run."""

    step_cpu_seconds: float
    """Of all processes, a train step."""
    by_service: dict[str, float]
    rows_written: int
    """To the place beside the database."""
    load: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "benchmarks/results/experience_sink.json"
    )
    parser.add_argument("--one", choices=(WITH, WITHOUT), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(asdict(_one_run(has_sink=arguments.one == WITH))))
        return
    pairs: list[dict[str, Measured]] = []
    for number in range(arguments.pairs):
        ways = (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)
        pairs.append({way: _started(way) for way in ways})
        print(f"pair {number}: {_ratio(pairs[-1]):.3f} {pairs[-1]}", flush=True)
    _report(pairs, arguments.json)


def _ratio(pair: dict[str, Measured]) -> float:
    return pair[WITH].step_cpu_seconds / pair[WITHOUT].step_cpu_seconds


def _report(pairs: list[dict[str, Measured]], path: Path) -> None:
    ratios = [_ratio(pair) for pair in pairs]
    claim = Claim("a step with the sink, over one without", statistics.median(ratios), MOST, "<=")
    print_claims([claim])
    record = {
        "claims": [claim.as_json()],
        "rows_of_a_step": NUM_TASKS * REPEATS,
        "ratios": [round(ratio, 4) for ratio in ratios],
        "step_cpu_seconds": {
            way: statistics.median(pair[way].step_cpu_seconds for pair in pairs)
            for way in (WITH, WITHOUT)
        },
        "pairs": [{way: asdict(run) for way, run in pair.items()} for pair in pairs],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def _started(way: str) -> Measured:
    """A run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.experience_sink", "--one", way],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Measured(**json.loads(done.stdout.strip().splitlines()[-1]))


def _one_run(*, has_sink: bool) -> Measured:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        written = Path(directory) / "experiences.db"
        place = {"experience_buffer": {"path": f"sqlite:///{written}"}} if has_sink else {}
        plan = experiment_plan(
            Path(directory),
            num_tasks=NUM_TASKS * NUM_STEPS,
            algorithm={"algorithm_type": "grpo", "repeat_times": REPEATS},
            buffer={
                "total_steps": NUM_STEPS,
                "batch_size": NUM_TASKS,
                "trainer_input": place,
            },
            synchronizer={"sync_interval": 1, "sync_offset": 1},
            explorer={"runner_per_model": 64},
            trainer={"save_interval": 0},
        )
        spent = asyncio.run(_spent(plan))
        rows = _num_rows(written) if has_sink else 0
    if has_sink and rows != NUM_TASKS * REPEATS * NUM_STEPS:
        raise RuntimeError(f"{rows} experiences are written")
    counted = NUM_STEPS - NUM_UNCOUNTED
    by_service = {name: seconds / counted for name, seconds in spent.items()}
    return Measured(sum(by_service.values()), by_service, rows, load)


async def _spent(plan: ExperimentPlan) -> dict[str, float]:
    """Processor seconds between two steps' reports, by service."""
    async with model_free_stack(plan.job_path) as stack:
        experiment = await start_experiment(stack.addresses.synchronizer, plan)
        request = pb.WatchProgressRequest(tenant=plan.tenant, experiment_id=experiment.id)
        before: dict[str, float] = {}
        async with open_channel(stack.addresses.buffer) as channel:
            async for answer in BufferServiceStub(channel).WatchProgress(request):
                steps = [event.step.step for event in answer.events if event.HasField("step")]
                if not before and any(step >= NUM_UNCOUNTED for step in steps):
                    before = _cpu_seconds()
                if NUM_STEPS in steps:
                    break
        after = _cpu_seconds()
        ended = await wait_until_ended(stack.addresses.synchronizer, experiment.id)
        if ended.reason:
            raise RuntimeError(ended.reason)
    return {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}


def _cpu_seconds() -> dict[str, float]:
    """User and system seconds of this process' descendants, by service."""
    spent: dict[str, float] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            times, name = process.cpu_times(), _service(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        spent[name] = spent.get(name, 0.0) + times.user + times.system
    return spent


def _service(argv: list[str]) -> str:
    line = " ".join(argv)
    known = ("buffer", "explorer", "trainer", "synchronizer", "postgres", "nats")
    return next((name for name in known if name in line.rpartition("/")[2] or name in line), "rest")


def _num_rows(file: Path) -> int:
    with sqlite3.connect(file) as connection:
        (found,) = connection.execute("SELECT count(*) FROM experience").fetchone()
    return int(found)


if __name__ == "__main__":
    main()
