"""What every process of a buffer takes while a million tasks go through a task pipeline.

python -m benchmarks.million_tasks [--tasks 100000 1000000] [--steps 3] [--json FILE]

For each number of tasks: a buffer of its own reads a file of so many rows, once as they are and
once through a pipeline (two filters, duplicates, a score, an order), opens the stage, hands out,
composes and records train steps. Beside that stands the raw limit: the same rows by COPY alone into
a table like the one of the tasks. Whatever runs below this process is looked at meanwhile, five
times a second; the peak of a kind is that of its own memory (RssAnon: without files and without
what Postgres shares); processor seconds are those of all processes of a kind until the stage is
open, which another load on the machine changes less than the time. Flat means: a million takes
hardly more than the first number.
"""

import argparse
import asyncio
import json
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg

from benchmarks.own_buffer import own_buffer
from benchmarks.table import Claim, print_claims
from tests.integration.buffer.harness import talk_to
from tests.integration.buffer.process import BufferProcess
from tests.unit.config.builders import stage
from trinity.config.plan import StagePlan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/million_tasks.json"
FILE = "tasks.jsonl"
LOOK_SECONDS = 0.2
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
KINDS = {
    "task_operators": "the pipeline's process",
    "read_rows": "the file's reader",
    "read_table": "the table's reader",
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
        """Of all processes of a kind, as far as they were seen."""
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows = []
    for pipeline in ({}, PIPELINE):
        for number in arguments.tasks:
            row = asyncio.run(_measured(number, arguments.steps, pipeline))
            print(json.dumps(row))
            rows.append(row)
    claims = _claims(rows)
    print_claims(claims)
    values = {"runs": rows, "claims": [claim.as_json() for claim in claims]}
    arguments.json.write_text(json.dumps(values, indent=2) + "\n")


async def _measured(
    num_tasks: int, num_steps: int, pipeline: Mapping[str, object]
) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as directory:
        root, peaks = Path(directory), Peaks()
        plan = await asyncio.to_thread(_plan, root, num_tasks, num_steps, pipeline)
        async with own_buffer(root) as process:
            raw = 0.0 if pipeline else await asyncio.to_thread(_copy_alone, process.dsn, root)
            watching = asyncio.create_task(peaks.watch())
            seconds, cpu = await _work(process, plan, num_steps, peaks)
            watching.cancel()
    return {
        "tasks": num_tasks,
        "pipeline": bool(pipeline),
        "seconds": _rounded(seconds | ({"COPY of the same rows alone": raw} if raw else {})),
        "cpu_seconds_until_open": _rounded(cpu),
        "peaks_mb": _rounded(peaks.mb),
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sorted(values.items())}


def _copy_alone(dsn: str, root: Path) -> float:
    """How long Postgres takes for the rows, in the same columns and under the same key."""
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


def _plan(root: Path, num_tasks: int, num_steps: int, pipeline: Mapping[str, object]) -> StagePlan:
    file = root / FILE
    with file.open("w") as stream:
        for i in range(num_tasks):
            row = {"prompt": f"{i}+{i}=", "response": str(2 * i), "hard": i * 37 % 100}
            stream.write(json.dumps(row) + "\n")
    return stage(
        algorithm={"repeat_times": 2},
        buffer={
            "batch_size": 4,
            "total_steps": num_steps,
            "explorer_input": {"taskset": {"name": "many", "path": str(file)}},
        },
        data_processor={"task_pipeline": dict(pipeline)} if pipeline else {},
        explorer={"eval_on_startup": False},
    )


async def _work(
    process: BufferProcess, plan: StagePlan, num_steps: int, peaks: Peaks
) -> tuple[dict[str, float], dict[str, float]]:
    """The time of both parts, and the processor's time of the first."""
    begun = time.monotonic()
    async with talk_to(process) as buffer:
        await buffer.open(plan)
        opened, cpu = time.monotonic(), peaks.cpu_seconds()
        await buffer.begin()
        await buffer.record(0)
        for step in range(1, num_steps + 1):
            await buffer.finish_all((await buffer.lease()).assignments)
            await buffer.batch(step)
            await buffer.report(step)
            await buffer.record(step)
    steps = time.monotonic() - opened
    return {"until the stage is open": opened - begun, "all steps": steps}, cpu


def _claims(rows: list[dict[str, object]]) -> list[Claim]:
    """Of each kind of process, the last number of tasks against the first."""
    claims = []
    for with_pipeline in (False, True):
        own = [row["peaks_mb"] for row in rows if row["pipeline"] is with_pipeline]
        first, last = own[0], own[-1]
        assert isinstance(first, dict) and isinstance(last, dict), "peaks by kind"
        how = "through a pipeline" if with_pipeline else "as they are"
        for kind in last:
            ratio = max(last[kind], SMALLEST_MB) / max(first.get(kind, 0.0), SMALLEST_MB)
            claims.append(Claim(f"{kind}, {how}: growth", ratio, GROWTH_LIMIT, "<="))
    return claims


if __name__ == "__main__":
    main()
