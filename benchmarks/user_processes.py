"""The cost of running users' rewards in processes: processor seconds of whole runs, in pairs.

python -m benchmarks.user_processes [--pairs 10] [--json FILE]

The services are real, and the engine and the learner sleep, so that a run takes far less of the
processor than one with a model does: the ratio is an upper bound. Answers end one after the other,
as a model's do: where all end at once, services handle them in one go without the processes, which
hand them on one by one. Each step scores 256 answers with a reward of a user's file. The two ways
take turns, so that what else the machine does meets both; every second pair begins with the other
way, and the figure is the geometric mean of the medians of both orders, in which an effect of the
order cancels. Processor seconds are those of all processes of a run from the first to the last,
those of the rewards and the start of the services included.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.model_free_run import STEP_RUNS, events_of, steady_plan
from benchmarks.table import PerformanceClaim, print_claims

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS = 16
SECONDS = 1.0
MOST = 1.03
PROCESSES, THREADS = "processes", "threads"
_NUM_ANSWERS = NUM_STEPS * STEP_RUNS


def main() -> None:
    """Runs the pairs and writes the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "benchmarks/results/user_processes.json"
    )
    parser.add_argument("--one", choices=["true", "false"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(_one_run(isolate=arguments.one == "true")))
        return
    pairs: list[dict[str, float]] = []
    for number in range(arguments.pairs):
        pairs.append(_pair(number))
        _report(pairs, arguments.json)


def _report(pairs: list[dict[str, float]], path: Path) -> None:
    ratio = balanced_ratio([pair[PROCESSES] / pair[THREADS] for pair in pairs])
    claim = PerformanceClaim(
        "processor seconds with processes over those with threads", ratio, MOST, "<="
    )
    print_claims([claim])
    result = {"pairs": pairs, "claims": [claim.as_json()], "answers": _NUM_ANSWERS}
    path.write_text(json.dumps(result, indent=1) + "\n")


def balanced_ratio(ratios: Sequence[float]) -> float:
    """Returns the ratio of pairs that begin with either way by turns; the order cancels."""
    orders = (ratios[::2], ratios[1::2])
    return statistics.geometric_mean(statistics.median(some) for some in orders if some)


def _pair(number: int) -> dict[str, float]:
    """Returns the processor seconds of both ways; every second pair begins with the other one."""
    ways = [(PROCESSES, "true"), (THREADS, "false")][:: 1 if number % 2 else -1]
    found = {name: _in_own_process(value) for name, value in ways}
    print({**found, "load": os.getloadavg()[0]}, flush=True)
    return found


def _in_own_process(isolate: str) -> float:
    """Runs one way; only a process's own children count in what it has used."""
    command = [sys.executable, "-m", "benchmarks.user_processes", "--one", isolate]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT).stdout
    return float(json.loads(output.splitlines()[-1]))


def _one_run(*, isolate: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        plan = steady_plan(Path(directory), NUM_STEPS, isolate_user_code=isolate)
        events = events_of(plan, run_seconds=SECONDS, step_seconds=SECONDS, spreads_runs=True)
        asyncio.run(events)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
