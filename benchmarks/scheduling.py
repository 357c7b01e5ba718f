"""Measures the rate of tasks that do nothing, and how soon waiting work is taken up.

python -m benchmarks.scheduling [--runs 3] [--json FILE]

Tasks go the whole way: leased from the buffer, run by the explorer over an engine that answers at
once, sent through the broker, stored in the database, grouped, composed into a batch. The wake-up
is from the answer to the trainer that a version is recorded to the lease in an explorer's hands.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from benchmarks.model_free_run import events_of
from benchmarks.own_buffer import own_buffer
from benchmarks.table import PerformanceClaim, print_claims
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.plans import ROWS, rollout_plan
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import buffer_pb2 as pb

Algorithm = Mapping[str, JsonValue]
ROOT = Path(__file__).resolve().parent.parent
NUM_TASKS = 1000
"""A step."""
RUN_ONCE: Algorithm = {"algorithm_type": "reinforceplusplus", "repeat_times": 1}
RUN_TWICE: Algorithm = {"algorithm_type": "grpo", "repeat_times": 2}
NUM_STEPS = 5
NUM_WAKES = 40
NUM_UNCOUNTED = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/scheduling.json")
    arguments = parser.parse_args()
    tasks = [_tasks_per_second(run, RUN_ONCE) for run in range(arguments.runs)]
    pairs = [_tasks_per_second(run, RUN_TWICE) for run in range(arguments.runs)]
    wakes = [asyncio.run(_wake_seconds()) for _ in range(arguments.runs)]
    claims = [
        PerformanceClaim(
            "no-op tasks a second, one run each", statistics.median(tasks), 1000, ">="
        ),
        PerformanceClaim(
            "no-op runs a second, two for each task", 2 * statistics.median(pairs), 1000, ">="
        ),
        PerformanceClaim("wake-up p50, milliseconds", 1000 * statistics.median(wakes), 10, "<="),
    ]
    print_claims(claims)
    arguments.json.write_text(
        json.dumps({"claims": [claim.as_json() for claim in claims]}, indent=2) + "\n"
    )


def _tasks_per_second(run: int, algorithm: Algorithm) -> float:
    """Tasks of the steps after the first, from the report of the step before to the batch."""
    with tempfile.TemporaryDirectory() as directory:
        plan = experiment_plan(
            Path(directory),
            name=f"run-{run}",
            num_tasks=NUM_TASKS,
            algorithm=algorithm,
            buffer={"batch_size": NUM_TASKS, "total_steps": NUM_STEPS},
            explorer={"runner_per_model": 256},
            trainer={"save_interval": 0},
        )
        events = asyncio.run(events_of(plan))
    composed = {e.batch.step: e.unix_millis for e in events if e.HasField("batch")}
    trained = {e.step.step: e.unix_millis for e in events if e.HasField("step")}
    seconds = [(composed[step + 1] - trained[step]) / 1000 for step in range(1, NUM_STEPS)]
    return NUM_TASKS / statistics.median(seconds)


async def _wake_seconds() -> float:
    with tempfile.TemporaryDirectory() as directory:
        async with own_buffer(Path(directory)) as process, talk_to(process) as buffer:
            plan = rollout_plan(
                Path(directory),
                num_tasks=NUM_WAKES * 3,
                total_steps=NUM_WAKES,
                train_batch_size=ROWS,
            )
            await buffer.open(plan)
            await buffer.begin()
            seconds = []
            for step in range(NUM_WAKES):
                waiting = asyncio.create_task(_lease(buffer))
                await asyncio.sleep(0.1)
                await buffer.record(step)
                recorded = time.perf_counter()
                assignments, granted = await waiting
                seconds.append(granted - recorded)
                await buffer.finish_all(assignments)
                await buffer.batch(step + 1)
                await buffer.report(step + 1)
    return statistics.median(seconds[NUM_UNCOUNTED:])


async def _lease(buffer: Buffer) -> tuple[list[pb.Assignment], float]:
    """Ask, and wait for work; also when it came."""
    answer = await buffer.lease(wait_seconds=20.0)
    granted = time.perf_counter()
    assert answer.assignments, answer.reason
    return list(answer.assignments), granted


if __name__ == "__main__":
    main()
