"""The time for which a device that is used by turns lies idle between two turns, without a model.

    python -m benchmarks.device_turns [--json FILE]

A stack of real processes takes eight steps by turns on a simulated device, whose engine and trainer
have nothing to move. Counted is the time from the end of a turn to the beginning of the next one of
the other process, where that one was waiting: lock, polling, and what a process does in between.
Seconds on a machine that does other things beside it are noise: the load is in the result.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from tests.support.model_free.device import DeviceEvent, device_folder, events_of
from tests.support.model_free.experiment import experiment_plan, run_to_end
from tests.support.model_free.stack import model_free_stack
from trinity.api.v1 import synchronizer_pb2 as pb

ROOT = Path(__file__).resolve().parents[1]
AIM_SECONDS = 0.05
SEED = 7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "benchmarks/results/device_turns.json"
    parser.add_argument("--json", type=Path, default=default)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        events = asyncio.run(_take_turns(Path(folder)))
    record = {
        "aim_seconds": AIM_SECONDS,
        "load_of_the_machine": os.getloadavg()[0],
        "processors": os.cpu_count(),
        "to_the_trainer": summary(gaps(events, "engine", "rank")),
        "to_the_engine": summary(gaps(events, "rank", "engine")),
    }
    given.json.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))


async def _take_turns(root: Path) -> list[DeviceEvent]:
    stage: JsonValue = {
        "stage_name": "rft",
        "mode": "colocate",
        "algorithm": {"algorithm_type": "grpo", "repeat_times": 2, "kl_loss_fn": "none"},
    }
    plan = experiment_plan(root, name="turns", seed=SEED, stages=[stage])
    async with model_free_stack(plan.job_path) as stack:
        ended = await run_to_end(stack.addresses.synchronizer, plan)
    assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
    return events_of(device_folder(plan.stages[0].model_path))


def gaps(events: Sequence[DeviceEvent], before: str, after: str) -> list[float]:
    """Returns the seconds between turns of the two; the first turns are those of the start."""
    wanted = (before, "asleep", after, "awake")
    found = [
        later.at - earlier.at
        for earlier, later in itertools.pairwise(events)
        if (earlier.role, earlier.what, later.role, later.what) == wanted
    ]
    return found[1:]


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Returns what is said of several."""
    return {
        "median_seconds": round(statistics.median(seconds), 4),
        "longest_seconds": round(max(seconds), 4),
        "num_turns": len(seconds),
    }


if __name__ == "__main__":
    main()
