"""Processor seconds of a step with `experience_buffer.path`, over the same step without it.

python -m benchmarks.experience_sink [--pairs 10] [--json FILE]

The services, the broker and the database are real; engine and learner compute nothing, so a step
costs what the services spend on its rows, and the place that experiences are also written to (a
SQLite file) is as large a share of it as it can be. All runs follow one another on one stack, in
pairs.

Counted are the user and system seconds of all processes of the stack over the whole run, from
before it is created until all experiences are written: every run does the same work in its window,
however late the report of a step is read. What a run spends until an early step is taken off as one
number, the median of all runs, so that its beginning does not hide the place's share. Every second
pair begins with the other way, and the figure is the geometric mean of the medians of both orders:
what the second run of a pair pays more, as the database has grown, is in the one as much as it is
left out of the other. Beside that figure stands the one at one speed: what else a machine does
makes the same work cost more or less processor time, and services that the place does not touch
(explorer, trainer, synchronizer, broker) tell by how much.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from benchmarks.model_free_run import reported_steps
from benchmarks.table import PerformanceClaim, print_claims
from services.buffer.sink.writer import LOOK_SECONDS
from tests.support.model_free.experiment import experiment_plan, start_experiment, wait_until_ended
from tests.support.model_free.stack import model_free_stack
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.json_values import JsonValue
from trinity.local.addresses import ServiceAddresses

ROOT = Path(__file__).resolve().parent.parent
NUM_STEPS, NUM_UNCOUNTED = 10, 2
NUM_TASKS, REPEATS = 16, 8
SETTLE_SECONDS = 2 * LOOK_SECONDS
"""After each run, in which what it left is written; without the place, the same time is counted."""
MOST = 1.05
WITH, WITHOUT = "with", "without"
TOUCHED = ("buffer", "postgres")
"""The service that writes to the place, and the database that it reads the rows from."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run."""

    cpu_seconds: float
    """Of all processes, over the whole run."""
    beginning_cpu_seconds: float
    """The part of it until an early train step was reported."""
    by_service: dict[str, float]
    rows_written: int
    """To the place beside the database."""
    load: float


@dataclass(frozen=True, slots=True)
class ProcessSeconds:
    """Processor seconds of a process since it started."""

    service: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--json", type=Path, default=ROOT / "benchmarks/results/experience_sink.json"
    )
    arguments = parser.parse_args()
    asyncio.run(_run_pairs(arguments.pairs, arguments.json))


async def _run_pairs(num_pairs: int, path: Path) -> None:
    """Runs the pairs and writes all results after each."""
    pairs: list[RunPair] = []
    with tempfile.TemporaryDirectory() as directory:
        async with model_free_stack(Path(directory) / "stack") as stack:
            warm = Runs(stack.addresses, Path(directory) / "warm")
            await warm.measured(WITH)
            for number in range(num_pairs):
                ways = (WITH, WITHOUT) if number % 2 == 0 else (WITHOUT, WITH)
                runs = Runs(stack.addresses, Path(directory) / str(number))
                pairs.append(RunPair(ways[0], {way: await runs.measured(way) for way in ways}))
                ratio = pairs[-1].ratio(beginning_of(pairs))
                print(f"pair {number}: {ratio:.3f} {pairs[-1]}", flush=True)
                _report(pairs, path)


@dataclass(frozen=True, slots=True)
class RunPair:
    """Two runs that follow one another."""

    first: str
    runs: dict[str, Measured]

    def ratio(self, beginning: float) -> float:
        """Processor seconds with the place over those without, both without the beginning."""
        with_it, without = (self.runs[way].cpu_seconds - beginning for way in (WITH, WITHOUT))
        return with_it / without

    def ratio_at_one_speed(self, beginning: float) -> float:
        """The same, had untouched services spent as much in both runs."""
        untouched = [self._untouched(way) for way in (WITH, WITHOUT)]
        touched = [self.runs[way].cpu_seconds - self._untouched(way) for way in (WITH, WITHOUT)]
        with_it = touched[0] * untouched[1] / untouched[0] + untouched[1] - beginning
        return with_it / (touched[1] + untouched[1] - beginning)

    def _untouched(self, way: str) -> float:
        spent = self.runs[way].by_service
        return sum(seconds for name, seconds in spent.items() if name not in TOUCHED)


def beginning_of(pairs: Sequence[RunPair]) -> float:
    """Returns the processor seconds of a run's beginning: one number for all."""
    runs = [run for pair in pairs for run in pair.runs.values()]
    return statistics.median(run.beginning_cpu_seconds for run in runs)


def balanced_ratio(pairs: Sequence[RunPair], ratio: Callable[[RunPair], float]) -> float:
    """Returns the ratio in which an effect of the order cancels; of one order alone, its median."""
    of_orders = [
        [ratio(pair) for pair in pairs if pair.first == first] for first in (WITH, WITHOUT)
    ]
    return statistics.geometric_mean(statistics.median(some) for some in of_orders if some)


def _report(pairs: list[RunPair], path: Path) -> None:
    beginning = beginning_of(pairs)
    figures = {
        "as counted": balanced_ratio(pairs, lambda pair: pair.ratio(beginning)),
        "at one speed": balanced_ratio(pairs, lambda pair: pair.ratio_at_one_speed(beginning)),
    }
    claims = [
        PerformanceClaim(f"a step with the sink, over one without, {name}", figure, MOST, "<=")
        for name, figure in figures.items()
    ]
    print_claims(claims)
    record = {
        "claims": [claim.as_json() for claim in claims],
        "rows_of_a_step": NUM_TASKS * REPEATS,
        "ratios": [round(pair.ratio(beginning), 4) for pair in pairs],
        "ratios_at_one_speed": [round(pair.ratio_at_one_speed(beginning), 4) for pair in pairs],
        "first": [pair.first for pair in pairs],
        "beginning_cpu_seconds": round(beginning, 3),
        "step_cpu_seconds": {
            way: round(
                statistics.median(pair.runs[way].cpu_seconds - beginning for pair in pairs)
                / (NUM_STEPS - NUM_UNCOUNTED),
                4,
            )
            for way in (WITH, WITHOUT)
        },
        "pairs": [{way: asdict(run) for way, run in pair.runs.items()} for pair in pairs],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


class Runs:
    """Runs of one pair, in a folder of their own."""

    def __init__(self, addresses: ServiceAddresses, folder: Path) -> None:
        self._addresses = addresses
        self._folder = folder

    async def measured(self, way: str) -> Measured:
        """One run to its end."""
        load, written = os.getloadavg()[0], self._folder / "experiences.db"
        plan = self._plan(way, written)
        beginning, spent = await self._spent(plan)
        rows = _num_rows(written) if way == WITH else 0
        if way == WITH and rows != NUM_TASKS * REPEATS * NUM_STEPS:
            raise RuntimeError(f"{rows} experiences are written")
        by_service = {name: round(seconds, 3) for name, seconds in spent.items()}
        total = round(sum(spent.values()), 3)
        return Measured(total, round(beginning, 3), by_service, rows, load)

    def _plan(self, way: str, written: Path) -> ExperimentPlan:
        place: dict[str, JsonValue] = (
            {"experience_buffer": {"path": f"sqlite:///{written}"}} if way == WITH else {}
        )
        return experiment_plan(
            self._folder,
            name=f"{self._folder.name}-{way}",
            num_tasks=NUM_TASKS * NUM_STEPS,
            algorithm={"algorithm_type": "grpo", "repeat_times": REPEATS},
            buffer={"total_steps": NUM_STEPS, "batch_size": NUM_TASKS, "trainer_input": place},
            synchronizer={"sync_interval": 1, "sync_offset": 1},
            explorer={"runner_per_model": 64},
            trainer={"save_interval": 0},
        )

    async def _spent(self, plan: ExperimentPlan) -> tuple[float, dict[str, float]]:
        """Processor seconds until an early step is reported, and of the whole run by service."""
        before = _cpu_seconds()
        experiment = await start_experiment(self._addresses.synchronizer, plan)
        beginning = 0.0
        async for step in reported_steps(self._addresses.buffer, plan, experiment.id):
            if not beginning and step >= NUM_UNCOUNTED:
                beginning = sum(_spent_since(before).values())
            if step == NUM_STEPS:
                break
        ended = await wait_until_ended(self._addresses.synchronizer, experiment.id)
        if ended.reason:
            raise RuntimeError(ended.reason)
        await asyncio.sleep(SETTLE_SECONDS)
        return beginning, _spent_since(before)


def _spent_since(before: Mapping[int, ProcessSeconds]) -> dict[str, float]:
    spent: dict[str, float] = {}
    for pid, now in _cpu_seconds().items():
        seconds = now.seconds - (before[pid].seconds if pid in before else 0.0)
        spent[now.service] = spent.get(now.service, 0.0) + seconds
    return spent


def _cpu_seconds() -> dict[int, ProcessSeconds]:
    """User and system seconds of this process' descendants, by process."""
    spent: dict[int, ProcessSeconds] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            spent[process.pid] = ProcessSeconds(
                _service(process.cmdline()), times.user + times.system
            )
    return spent


def _service(argv: list[str]) -> str:
    line = " ".join(argv)
    known = ("postgres", "nats", "buffer", "explorer", "trainer", "synchronizer")
    return next((name for name in known if name in line), "rest")


def _num_rows(file: Path) -> int:
    with sqlite3.connect(file) as connection:
        (found,) = connection.execute("SELECT count(*) FROM experience").fetchone()
    return int(found)


if __name__ == "__main__":
    main()
