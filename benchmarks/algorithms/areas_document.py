"""Writes the results of the three tasks into a page: areas under held-out curves, a table a task.

A table more compares the loop in one process with the services, on `edits`.

python -m benchmarks.algorithms.areas_document docs/algorithms.md
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.algorithms.beside.course import (
    EDITS,
    HINTED,
    OURS,
    SERVICES,
    Course,
    Courses,
)
from benchmarks.algorithms.judge import HARD_LAG
from benchmarks.algorithms.outcome import area_under
from benchmarks.algorithms.report import CurveArea, as_json
from benchmarks.algorithms.run import RATIO_LAGS
from benchmarks.algorithms.tasks import TASKS

RESULTS = Path(__file__).resolve().parents[1] / "results"
LAGS = tuple(sorted((0, HARD_LAG, *RATIO_LAGS)))


def main() -> None:
    page = Path(sys.argv[1])
    records = {
        task: json.loads((RESULTS / f"algorithms_{task}.json").read_text())
        for task in TASKS
        if (RESULTS / f"algorithms_{task}.json").exists()
    }
    courses = Courses(RESULTS / "algorithms_beside.jsonl").by_key.values()
    text = filled(page.read_text(), "areas", lines_of(records))
    page.write_text(filled(text, "services", lines_of_services(courses)))


def filled(text: str, name: str, lines: Iterable[str]) -> str:
    """Returns the page with these lines between the marks of a name.

    Raises: SystemExit if the page has no such marks.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    table = "\n".join([begin, *lines, end])
    text, found = re.subn(f"{begin}.*?{end}", lambda _: table, text, flags=re.DOTALL)
    if not found:
        raise SystemExit(f"the page has no {begin} for the table")
    return text


def lines_of(records: Mapping[str, Any]) -> Iterator[str]:
    """Yields a table of Markdown for each task, a line a trial and a column a lag."""
    for task, record in records.items():
        cells = dict(_cells(record))
        lags = [lag for lag in LAGS if any(key[1] == lag for key in cells)]
        names = list(dict.fromkeys(name for name, _ in cells))
        starts = {area["trials"][0]: area["start"] for area in record["areas"]}
        yield f"**{task}**: {record['task']}; start {record['start']:.3f}"
        yield ""
        yield _row([task, *(f"lag {lag}" for lag in lags)])
        yield _row(["---"] * (len(lags) + 1))
        for name in names:
            is_own = starts.get(name, record["start"]) != record["start"]
            shown = f"{name}, start {starts[name]:.3f}" if is_own else name
            yield _row([shown, *(cells.get((name, lag), "") for lag in lags)])
        yield ""


def lines_of_services(courses: Iterable[Course]) -> Iterator[str]:
    """Yields a line an algorithm: its area on `edits` in our loop, and through the services."""
    by_key: dict[tuple[str, str, str], list[Course]] = {}
    for course in courses:
        by_key.setdefault((course.model, course.algorithm, course.contender), []).append(course)
    if not any(model in (EDITS, HINTED) for model, _, _ in by_key):
        return
    yield _row(["algorithm", "start", "our loop", SERVICES])
    yield _row(["---"] * 4)
    for model in (EDITS, HINTED):
        algorithms = dict.fromkeys(key[1] for key in by_key if key[0] == model)
        for algorithm in algorithms:
            loop, services = (by_key.get((model, algorithm, who), []) for who in (OURS, SERVICES))
            start = fmean({course.start for course in (*loop, *services)})  # one value a sample
            yield _row([algorithm, f"{start:.3f}", _area(loop, start), _area(services, start)])


def _area(courses: Sequence[Course], start: float) -> str:
    if not courses:
        return ""
    areas = tuple(area_under(course.start, course.accuracies) for course in courses)
    return _figure(as_json(CurveArea(trials=(), lag=0, areas=areas, start=start)))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, int], str]]:
    """Yields the figure of each trial and lag; one that does not learn is in brackets."""
    for area in record["areas"]:
        first, *same = area["trials"]
        yield (first, area["lag"]), _figure(area)
        for name in same:
            yield (name, area["lag"]), f"as {first}"


def _figure(area: Mapping[str, Any]) -> str:
    width = "" if area["half_width"] is None else f" ± {area['half_width']:.3f}"
    figure = f"{area['mean']:.3f}{width}"
    return f"({figure})" if area["learns"] is False else figure


if __name__ == "__main__":
    main()
