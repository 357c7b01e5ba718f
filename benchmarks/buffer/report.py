"""The table: our figure, the aim, the raw limit and the peers of the same run."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

Figures = Mapping[str, Sequence[float]]


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
    FigureRow(name="growth", what="rate at 1,000,000 rows over rate at 10,000", aim=0.9),
    FigureRow(name="growth_read", what="reading at 1,000,000 rows over reading at 10,000"),
    FigureRow(name="wake_ms", what="wake-up of a waiting trainer, ms", aim=5, relation="<="),
    FigureRow(
        name="memory_mb", what="buffer's memory, trainer stopped, MB", aim=400, relation="<="
    ),
)


def as_json(own: Figures, raw: Figures, peers: Mapping[str, Figures | str]) -> dict[str, object]:
    """All of it, by row; a ratio above 1 says that we are ahead."""
    rows = {}
    for row in ROWS:
        if row.name not in own:
            continue
        ours = statistics.median(own[row.name])
        others = {"raw": raw} | {n: p for n, p in peers.items() if not isinstance(p, str)}
        rows[row.name] = {
            "what": row.what,
            "median": ours,
            "runs": list(own[row.name]),
            "aim": row.aim,
            "holds": None if row.aim is None else _ratio(row, ours, row.aim) >= 1,
            **{n: _other(row, ours, f[row.name]) for n, f in others.items() if row.name in f},
        }
    missing = {name: figures for name, figures in peers.items() if isinstance(figures, str)}
    further = {n: list(v) for n, v in own.items() if n not in rows}
    return {"rows": rows, "further": further, "not_measured": missing}


def _other(row: FigureRow, ours: float, runs: Sequence[float]) -> dict[str, float | list[float]]:
    median = statistics.median(runs)
    return {"median": median, "ratio": _ratio(row, ours, median), "runs": list(runs)}


def _ratio(row: FigureRow, ours: float, other: float) -> float:
    return ours / other if row.relation == ">=" else other / ours


def print_table(record: Mapping[str, object], peers: Sequence[str]) -> None:
    """One line a row."""
    columns = ("raw", *peers)
    table = Table("what", "ours", "lowest to highest", "aim", "holds", *columns)
    rows = record["rows"]
    assert isinstance(rows, dict)
    for row in rows.values():
        holds = {True: "yes", False: "NO", None: ""}[row["holds"]]
        aim = "" if row["aim"] is None else f"{row['aim']:g}"
        spread = f"{_text(min(row['runs']))} to {_text(max(row['runs']))}"
        beside = (_beside(row, column) for column in columns)
        table.add_row(row["what"], _text(row["median"]), spread, aim, holds, *beside)
    Console(width=160).print(table)
    print("in brackets: how many times as good ours is")


def _beside(row: Mapping[str, dict[str, float]], name: str) -> str:
    if name not in row:
        return ""
    return f"{_text(row[name]['median'])} ({row[name]['ratio']:.2f})"


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
