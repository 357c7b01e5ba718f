"""Compares the buffer's speed with the raw limits of the same run.

python -m benchmarks.buffer [--runs 5] [--cores 2,3] [--json FILE]

Everything is real: broker, database, the buffer's process and our two clients, each a process,
all on the same few cores. *Raw* is what two bare processes do with the same bytes: publish with
acknowledgement, COPY and commit; read and mark rows.

Every figure is the median of as many runs, with the lowest and the highest; that of
memory is described in ours.py.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from benchmarks.buffer import limits, ours
from benchmarks.buffer.made import Sizes
from benchmarks.buffer.stack import pin, running_stack

ROOT = Path(__file__).resolve().parent.parent.parent
Runs = dict[str, list[float]]
Figures = Mapping[str, Sequence[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument(
        "--cores", default=last_cores(), help="which cores all of it runs on (%(default)s)"
    )
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/buffer.json")
    arguments = parser.parse_args()
    cores = {int(core) for core in arguments.cores.split(",")}
    pin(cores)
    load = os.getloadavg()[0]
    own, raw = asyncio.run(measure(Sizes(), arguments.runs))
    record = as_json(own, raw)
    record |= {"runs": arguments.runs, "cores": len(cores)}
    record |= {"load_before": load, "load_after": os.getloadavg()[0]}
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    print_table(record)


def last_cores() -> str:
    """The last two that this process may use: the first ones have the system's own work."""
    return ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[-2:])


async def measure(sizes: Sizes, num_runs: int) -> tuple[Runs, Runs]:
    """Our figures and the raw ones, run after run, side by side."""
    own: Runs = defaultdict(list)
    raw: Runs = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        async with running_stack(folder) as stack:
            for _ in range(num_runs):
                _add(raw, await limits.measure(stack, sizes))
                _add(own, await ours.measure(stack, folder, sizes))
    for _ in range(num_runs):
        with tempfile.TemporaryDirectory() as directory:
            _add(own, await ours.measure_memory(Path(directory), sizes))
    return own, raw


def _add(runs: Runs, figures: dict[str, float]) -> None:
    for name, value in figures.items():
        runs[name].append(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """One figure that is held against others."""

    name: str
    what: str
    relation: Literal["<=", ">="] = ">="
    aim: float | None = None


ROWS = (
    FigureRow(name="publish_16k", what="16 KiB, published to committed, /s", aim=5_000),
    FigureRow(name="read_16k", what="16 KiB, a composed batch read as arrays, /s", aim=15_000),
    FigureRow(name="awaited_64", what="one at a time, 64 outstanding, /s", aim=1_000),
    FigureRow(name="awaited_1", what="one at a time, awaited, /s", aim=200),
    FigureRow(name="publish_2k", what="2 KiB packed, published to committed, /s", aim=10_000),
    FigureRow(name="lease_2k_ms", what="lease of 256 tasks of 2 KiB, ms", aim=10, relation="<="),
    FigureRow(
        name="lease_opening_ms", what="the same, opening eight explore steps, ms", relation="<="
    ),
    FigureRow(name="lease_64k_ms", what="lease of 256 tasks of 64 KiB, ms", aim=25, relation="<="),
    FigureRow(name="take_2k_ms", what="batch of 256 composed and read, 2 KiB, ms", relation="<="),
    FigureRow(name="take_16k_ms", what="batch of 256 composed and read, 16 KiB, ms", relation="<="),
    FigureRow(name="take_64k_ms", what="batch of 256 composed and read, 64 KiB, ms", relation="<="),
    FigureRow(name="wake_ms", what="wake-up of a waiting trainer, ms", aim=5, relation="<="),
    FigureRow(
        name="memory_mb", what="buffer's memory, trainer stopped, MB", aim=400, relation="<="
    ),
)


def as_json(own: Figures, raw: Figures) -> dict[str, object]:
    """All of it, by row; a ratio above 1 says that we are ahead."""
    rows = {}
    for row in ROWS:
        if row.name not in own:
            continue
        ours = statistics.median(own[row.name])
        rows[row.name] = {
            "what": row.what,
            "median": ours,
            "runs": list(own[row.name]),
            "aim": row.aim,
            "holds": None if row.aim is None else _ratio(row, ours, row.aim) >= 1,
            **({"raw": _raw(row, ours, raw[row.name])} if row.name in raw else {}),
        }
    further = {n: list(v) for n, v in own.items() if n not in rows}
    return {"rows": rows, "further": further}


def _raw(row: FigureRow, ours: float, runs: Sequence[float]) -> dict[str, float | list[float]]:
    median = statistics.median(runs)
    return {"median": median, "ratio": _ratio(row, ours, median), "runs": list(runs)}


def _ratio(row: FigureRow, ours: float, other: float) -> float:
    return ours / other if row.relation == ">=" else other / ours


def print_table(record: Mapping[str, object]) -> None:
    """One line a row."""
    table = Table("what", "ours", "lowest to highest", "aim", "holds", "raw")
    rows = record["rows"]
    assert isinstance(rows, dict)
    for row in rows.values():
        holds = {True: "yes", False: "NO", None: ""}[row["holds"]]
        aim = "" if row["aim"] is None else f"{row['aim']:g}"
        spread = f"{_text(min(row['runs']))} to {_text(max(row['runs']))}"
        table.add_row(row["what"], _text(row["median"]), spread, aim, holds, _beside(row))
    Console(width=160).print(table)
    print("in brackets: how many times as good ours is")


def _beside(row: Mapping[str, dict[str, float]]) -> str:
    if "raw" not in row:
        return ""
    return f"{_text(row['raw']['median'])} ({row['raw']['ratio']:.2f})"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    main()
