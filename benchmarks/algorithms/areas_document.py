"""Writes what the three tasks gave into a page: areas under held-out curves, a table a task.

python -m benchmarks.algorithms.areas_document docs/algorithms.md
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.algorithms.judge import HARD_LAG
from benchmarks.algorithms.run import RATIO_LAGS
from benchmarks.algorithms.tasks import TASKS

RESULTS = Path(__file__).resolve().parents[1] / "results"
BEGIN, END = "<!-- areas: begin -->", "<!-- areas: end -->"
LAGS = tuple(sorted((0, HARD_LAG, *RATIO_LAGS)))


def main() -> None:
    page = Path(sys.argv[1])
    records = {
        task: json.loads((RESULTS / f"algorithms_{task}.json").read_text())
        for task in TASKS
        if (RESULTS / f"algorithms_{task}.json").exists()
    }
    table = "\n".join([BEGIN, *lines_of(records), END])
    text, found = re.subn(f"{BEGIN}.*?{END}", lambda _: table, page.read_text(), flags=re.DOTALL)
    if not found:
        raise SystemExit(f"{page} has no {BEGIN} for the table")
    page.write_text(text)


def lines_of(records: Mapping[str, Any]) -> Iterator[str]:
    """Yields a table of Markdown for each task, a line a trial and a column a lag."""
    for task, record in records.items():
        cells = dict(_cells(record))
        lags = [lag for lag in LAGS if any(key[1] == lag for key in cells)]
        names = list(dict.fromkeys(name for name, _ in cells))
        yield f"**{task}**: {record['task']}; start {record['start']:.3f}"
        yield ""
        yield _row([task, *(f"lag {lag}" for lag in lags)])
        yield _row(["---"] * (len(lags) + 1))
        for name in names:
            yield _row([name, *(cells.get((name, lag), "") for lag in lags)])
        yield ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], str]]:
    """Yields the figure of each trial and lag; one that does not learn is in brackets."""
    for area in record["areas"]:
        first, *same = area["trials"]
        width = "" if area["half_width"] is None else f" ± {area['half_width']:.3f}"
        figure = f"{area['mean']:.3f}{width}"
        yield (first, area["lag"]), f"({figure})" if area["learns"] is False else figure
        for name in same:
            yield (name, area["lag"]), f"as {first}"


if __name__ == "__main__":
    main()
