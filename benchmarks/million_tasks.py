"""Measures every process of a buffer while a million tasks come in and are served.

python -m benchmarks.million_tasks [--ways file grpc sql] [--tasks 100000 1000000] [--steps 3]
    [--json FILE]

The tasks come from a file, over a client's gRPC stream, or from a table of SQLite, as they are; for
the file there is also a pipeline (two filters, duplicates, a score, an order). For each of these
and each number of tasks a buffer of its own takes them in, opens the stage, hands out, composes and
records train steps. A client's tasks are stored when it has its answer, all others when the stage
is open. Beside that stands the raw limit: the same rows by COPY alone into a table like the one of
the tasks. Whatever runs below this process, the client too, is looked at meanwhile, five times a
second; the peak of a kind is that of its own memory (RssAnon: without files and without what
Postgres shares); processor seconds are those of all processes of a kind until the stage is open,
which another load on the machine changes less than the time. Flat means: a million takes hardly
more than the first number.
"""

import argparse
import asyncio
import json
import sqlite3
import sys
import tempfile
import time
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from itertools import groupby
from pathlib import Path

import psutil
import psycopg
from rich.console import Console
from rich.table import Column, Table

from benchmarks.own_buffer import own_buffer
from benchmarks.table import PerformanceClaim, print_claims
from tests.integration.buffer.harness import talk_to
from tests.integration.buffer.process import BufferProcess
from tests.unit.config.builders import stage
from trinity.config.plan.stage_plan import StagePlan

FILE, DATABASE, NAME = "tasks.jsonl", "tasks.db", "many"


class Way(StrEnum):
    """A way of bringing tasks into a buffer."""

    FILE = "file"
    """JSON lines, which the buffer reads."""
    GRPC = "grpc"
    """`trinity taskset submit` in a process of its own, through the SDK, from that file."""
    SQL = "sql"
    """A table of SQLite that has those rows as whole tasks."""


def write_tasks(way: Way, root: Path, num_tasks: int) -> None:
    """The file, which every way begins with, and the table."""
    with (root / FILE).open("w") as stream:
        for i in range(num_tasks):
            row = {"prompt": f"{i}+{i}=", "response": str(2 * i), "hard": i * 37 % 100}
            stream.write(json.dumps(row) + "\n")
    if way is Way.SQL:
        _write_table(root)


def _write_table(root: Path) -> None:
    with (
        closing(sqlite3.connect(root / DATABASE)) as connection,
        connection,
        (root / FILE).open() as lines,
    ):
        connection.execute(f"CREATE TABLE {NAME} (id INTEGER PRIMARY KEY, raw_task JSON)")
        insert = f"INSERT INTO {NAME} (raw_task) VALUES (?)"
        connection.executemany(insert, ((line.rstrip(),) for line in lines))


def taskset_of(way: Way, root: Path) -> Mapping[str, object]:
    """The part of a configuration that names the tasks."""
    match way:
        case Way.FILE:
            return {"name": NAME, "path": str(root / FILE)}
        case Way.GRPC:
            return {"name": NAME, "storage_type": "client", "path": None}
        case Way.SQL:
            return {"name": NAME, "storage_type": "sql", "path": f"sqlite:///{root / DATABASE}"}


async def submit(address: str, root: Path) -> None:
    """Submits the tasks and returns once the buffer has stored all."""
    command = ("taskset", "submit", str(root / FILE), "--name", NAME, "--buffer", address)
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trinity.cli.main", *command), stdout=DEVNULL
    )
    assert await client.wait() == 0, "standard error says why"


LOOK_SECONDS = 0.2
KINDS = {
    "task_operators": "the pipeline's process",
    "read_rows": "the reader",
    "trinity.cli": "the client",
    "services.buffer": "the buffer",
    "postgres": "a process of Postgres",
    "nats-server": "the broker",
}
"""A part of the command line, and what it is called."""


class Peaks:
    """The most memory that each kind of process has taken so far, and its processor's time."""

    def __init__(self) -> None:
        self.mb: dict[str, float] = {}
        self._cpu_seconds: dict[tuple[str, int], float] = {}

    def cpu_seconds(self) -> dict[str, float]:
        """The processor seconds of all processes of a kind, as far as they were seen."""
        seconds: dict[str, float] = {}
        for (kind, _), value in self._cpu_seconds.items():
            seconds[kind] = seconds.get(kind, 0.0) + value
        return seconds

    async def watch(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.to_thread(self._look)
            await asyncio.sleep(LOOK_SECONDS)

    def _look(self) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):
                kind = _kind_of(process)
                if kind is not None:
                    self.mb[kind] = max(self.mb.get(kind, 0.0), _own_mb(process.pid))
                    times = process.cpu_times()
                    self._cpu_seconds[kind, process.pid] = times.user + times.system


def _kind_of(process: psutil.Process) -> str | None:
    line = " ".join(process.cmdline())
    return next((name for part, name in KINDS.items() if part in line), None)


def _own_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = [line for line in lines if line.startswith("RssAnon")]
    return float(found[0].split()[1]) * 1024 / 1e6 if found else 0.0


ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/million_tasks.json"
GROWTH_LIMIT = 1.5
"""Of any process, from the first number of tasks to the last."""
SMALLEST_MB = 64.0
"""What grows below this is not called growth: an interpreter takes more."""
PIPELINE: Mapping[str, object] = {
    "operators": [
        {"name": "length_filter", "args": {"column": "prompt", "at_most": 200}},
        {"name": "number_filter", "args": {"column": "hard", "at_most": 98}},
        {"name": "duplicate_filter", "args": {"columns": ["prompt"]}},
        {"name": "column_score", "args": {"column": "hard", "score": "difficulty"}},
    ],
    "priority_weights": {"difficulty": -1.0},
}


@dataclass(frozen=True, slots=True)
class Case:
    """One measurement, in a buffer of its own."""

    way: Way
    pipeline: bool
    tasks: int

    @property
    def how(self) -> str:
        """The case in words, without the number of tasks."""
        return f"{self.way} through a pipeline" if self.pipeline else str(self.way)


@dataclass(slots=True)
class Work:
    """The seconds that it took, processor seconds among them, and what came of it."""

    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds_until_open: dict[str, float] = field(default_factory=dict)
    num_leases: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredCase:
    """A case as it was measured."""

    case: Case
    work: Work
    peaks_mb: dict[str, float]

    def as_json(self) -> dict[str, object]:
        """Returns the figures for the committed results."""
        return {
            **asdict(self.case),
            "seconds": _rounded(self.work.seconds),
            "leases": self.work.num_leases,
            "cpu_seconds_until_open": _rounded(self.work.cpu_seconds_until_open),
            "peaks_mb": _rounded(self.peaks_mb),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", type=Way, nargs="+", choices=list(Way), default=list(Way))
    parser.add_argument("--tasks", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs = []
    for case in _cases(arguments.ways, arguments.tasks):
        runs.append(asyncio.run(_measured(case, arguments.steps)))
        print(json.dumps(runs[-1].as_json()))
    claims = _claims(runs)
    _print_runs(runs)
    print_claims(claims)
    values = {
        "runs": [run.as_json() for run in runs],
        "claims": [claim.as_json() for claim in claims],
    }
    arguments.json.write_text(json.dumps(values, indent=2) + "\n")


def _cases(ways: Sequence[Way], numbers: Sequence[int]) -> list[Case]:
    hows = [(way, False) for way in ways]
    if Way.FILE in ways:
        hows.append((Way.FILE, True))
    return [Case(way, pipeline, number) for way, pipeline in hows for number in numbers]


async def _measured(case: Case, num_steps: int) -> MeasuredCase:
    with tempfile.TemporaryDirectory() as directory:
        root, peaks = Path(directory), Peaks()
        await asyncio.to_thread(write_tasks, case.way, root, case.tasks)
        async with own_buffer(root) as process:
            raw = 0.0 if case.pipeline else await asyncio.to_thread(_copy_alone, process.dsn, root)
            watching = asyncio.create_task(peaks.watch())
            work = await _work(process, case, root, num_steps, peaks)
            watching.cancel()
    if raw:
        work.seconds["COPY of the same rows alone"] = raw
    return MeasuredCase(case, work, peaks.mb)


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sorted(values.items())}


def _copy_alone(dsn: str, root: Path) -> float:
    """Returns the seconds that Postgres takes for the rows, with the same columns and key."""
    begun = time.monotonic()
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE buffer.raw (LIKE buffer.task INCLUDING ALL)")
        with cursor.copy("COPY buffer.raw FROM STDIN") as copy:
            owner = f"default\t{uuid.uuid4()}".encode()
            for i, line in enumerate((root / FILE).open("rb")):
                copy.write(b"%b\t%d\t%b" % (owner, i, line))
        connection.commit()
        seconds = time.monotonic() - begun
        cursor.execute("DROP TABLE buffer.raw")
    return seconds


def _plan(case: Case, root: Path, num_steps: int) -> StagePlan:
    return stage(
        algorithm={"repeat_times": 2},
        buffer={
            "batch_size": 4,
            "total_steps": num_steps,
            "explorer_input": {"taskset": taskset_of(case.way, root)},
        },
        data_processor={"task_pipeline": dict(PIPELINE)} if case.pipeline else {},
        explorer={"eval_on_startup": False},
    )


async def _work(
    process: BufferProcess, case: Case, root: Path, num_steps: int, peaks: Peaks
) -> Work:
    work, begun = Work(), time.monotonic()
    async with talk_to(process) as buffer:
        if case.way is Way.GRPC:
            await submit(process.address, root)
            work.seconds["until all is stored"] = time.monotonic() - begun
        await buffer.open(_plan(case, root, num_steps))
        work.seconds["until the stage is open"] = opened = time.monotonic() - begun
        work.seconds.setdefault("until all is stored", opened)
        work.cpu_seconds_until_open = peaks.cpu_seconds()
        await buffer.begin()
        await buffer.record(0)
        for step in range(1, num_steps + 1):
            granted = (await buffer.lease()).assignments
            work.seconds.setdefault("until the first lease", time.monotonic() - begun)
            work.num_leases += len(granted)
            await buffer.finish_all(granted)
            await buffer.batch(step)
            await buffer.report(step)
            await buffer.record(step)
    work.seconds["all steps"] = time.monotonic() - begun - opened
    return work


def _print_runs(runs: Sequence[MeasuredCase]) -> None:
    """One column a run."""
    columns = [_figures(run) for run in runs]
    heads = [f"{run.case.how}\n{run.case.tasks:,}" for run in runs]
    table = Table("", *(Column(head, justify="right") for head in heads))
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(
            name, *(f"{round(column[name], 1):,}" if name in column else "" for column in columns)
        )
    Console().print(table)


def _figures(run: MeasuredCase) -> dict[str, float]:
    return {
        **{f"{kind}, MB": peak for kind, peak in sorted(run.peaks_mb.items())},
        **{f"{what}, s": seconds for what, seconds in sorted(run.work.seconds.items())},
        "processor until open, s": sum(run.work.cpu_seconds_until_open.values()),
        "leases": run.work.num_leases,
    }


def _claims(runs: Sequence[MeasuredCase]) -> list[PerformanceClaim]:
    """Compares the last number of tasks with the first, for each kind of process."""
    claims = []
    for how, same in groupby(runs, key=lambda run: run.case.how):
        peaks = [run.peaks_mb for run in same]
        first, last = peaks[0], peaks[-1]
        for kind in last:
            ratio = max(last[kind], SMALLEST_MB) / max(first.get(kind, 0.0), SMALLEST_MB)
            claims.append(PerformanceClaim(f"{kind}, {how}: growth", ratio, GROWTH_LIMIT, "<="))
    return claims


if __name__ == "__main__":
    main()
