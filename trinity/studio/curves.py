"""Curves of a run as specifications of charts; titles of metrics stand in them as data."""

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from trinity.run.progress.view import MeanWithError
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.studio.history import StageHistory

MAX_POINTS = 1_000
"""Points of a curve that a chart gets; more are thinned out evenly."""
MAX_CURVES = 6
"""Tasksets of a chart: as many as there are colours, and as its legend has room for."""
HEIGHT, LEGEND_HEIGHT = 220, 48
"""In pixels: of a chart, and of a legend above it."""
LEGEND_COLUMNS = 2
NARROW_LABEL, WIDE_LABEL = 125, 260
"""In pixels: names in the legends of three charts a row, and of two."""
LABEL_CHARS = 18
"""Longer names are shown by what tells them apart."""
PALETTE = ("#2a6fae", "#b3591a", "#5c4492", "#19796d", "#8a6d00", "#a3325b")
"""Distinguishable in three kinds of colour blindness; lines also differ by their marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveGroup:
    """Metrics that share a chart."""

    title: str
    unit: str
    names: tuple[str, ...]
    good: str
    """How it looks if all is well."""


BETTER = "higher is better"
GROUPS = (
    CurveGroup(title="Reward", unit="reward", names=("reward/mean",), good=BETTER),
    CurveGroup(
        title="Loss", unit="loss", names=("actor/loss",), good="its size says little; jumps do"
    ),
    CurveGroup(
        title="KL", unit="nats", names=("actor/ppo_kl", "actor/kl"), good="small: no step too large"
    ),
    CurveGroup(
        title="Entropy", unit="nats", names=("actor/entropy",), good="may fall, slowly and not to 0"
    ),
    CurveGroup(
        title="Gradient norm", unit="norm", names=("actor/grad_norm",), good="even, few spikes"
    ),
    CurveGroup(
        title="Lengths",
        unit="tokens",
        names=("response_length/mean", "response_length/max", "prompt_length/mean"),
        good="below the limit of responses",
    ),
    CurveGroup(
        title="Staleness",
        unit="versions",
        names=("staleness/token/mean", "staleness/token/max", "staleness/sample/mean"),
        good="0 is on-policy",
    ),
    CurveGroup(
        title="Trainer idle",
        unit="share",
        names=("perf/idle_share",),
        good="near 0 where rollouts run ahead",
    ),
    CurveGroup(title="Throughput", unit="tokens/s", names=("perf/throughput",), good=BETTER),
)


def curve_chart(stage: StageHistory, group: CurveGroup) -> JsonObject | None:
    """Returns the chart of a group; None if it has no recorded values."""
    curves = {name: stage.curve(name) for name in group.names}
    points = [
        point
        for name, curve in curves.items()
        for point in _thinned(_curve_label(name), sorted(curve), curve)
    ]
    if not points:
        return None
    return _chart(points, x="step", y=group.unit, layers=[_line()])


def _curve_label(name: str) -> str:
    """Returns `response mean` for `response_length/mean`: a legend has little room."""
    return name.removeprefix("actor/").replace("_length/", " ").replace("/", " ")


def evaluation_charts(stage: StageHistory) -> Iterable[tuple[str, JsonObject]]:
    """Yields a metric's name and its chart, with a curve and error bars for each taskset."""
    labels = short_labels(list(stage.evaluations)[:MAX_CURVES])
    for metric in stage.scores:
        measured = {label: stage.measured(name, metric) for name, label in labels.items()}
        if any(measured.values()):
            yield metric, measured_chart(measured, metric)


def evaluation_rows(stage: StageHistory) -> list[tuple[str, int, float]]:
    """Returns the newest value of each metric of each taskset, as `accuracy on math`."""
    rows = []
    for taskset, versions in stage.evaluations.items():
        newest = max(versions, default=None)
        if newest is None:
            continue
        for name, found in sorted(versions[newest].metrics.items()):
            rows.append((f"{name} on {taskset}", newest, found.mean))
        if failed := versions[newest].num_failed:
            rows.append((f"failed runs on {taskset}", newest, float(failed)))
    return rows


def curves_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str
) -> JsonObject:
    """Returns the chart of curves by their names; an empty one keeps its colour free."""
    points = [
        point
        for name, curve in curves.items()
        for point in _thinned(name, [place for place, _ in curve], dict(curve))
    ]
    names = list(curves)
    return _chart(points, x=x, y=y, layers=[_line()], names=names, label_limit=WIDE_LABEL)


def measured_chart(
    measured: Mapping[str, Mapping[int, MeanWithError]],
    metric: str,
    *,
    names: Sequence[str] = (),
    label_limit: int = NARROW_LABEL,
) -> JsonObject:
    """Returns the chart of evaluations with error bars, by the names of their curves."""
    points: list[JsonValue] = [
        {
            "x": version,
            "y": found.mean,
            "low": found.mean - found.standard_error,
            "high": found.mean + found.standard_error,
            "n": found.n,
            "curve": curve,
        }
        for curve, versions in measured.items()
        for version, found in versions.items()
    ]
    layers: list[JsonValue] = [_error_bars(), _line()]
    return _chart(
        points, x="version", y=metric, layers=layers, names=names, label_limit=label_limit
    )


def short_labels(names: Sequence[str]) -> dict[str, str]:
    """Returns labels by names; of long names that begin alike the beginning is left out."""
    if max(map(len, names), default=0) <= LABEL_CHARS or len(names) < 2:
        return {name: name for name in names}
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    beginning = names[0][: sum(1 for _ in alike)]
    shared = len(beginning.rstrip(string.ascii_letters + string.digits))
    if not shared:
        return {name: name for name in names}
    return {name: f"…{name[shared:]}" for name in names}


def _thinned(name: str, places: Sequence[float], curve: Mapping[Any, float]) -> list[JsonValue]:
    """Returns the points of a curve, and of very many an even choice with the newest."""
    stride = max(1, -(-len(places) // MAX_POINTS))
    kept = [*places[::stride], *(places[-1:] if places and (len(places) - 1) % stride else [])]
    return [{"x": place, "y": curve[place], "curve": name} for place in kept]


def _line() -> JsonObject:
    return {
        "mark": {"type": "line", "point": {"size": 16}, "strokeWidth": 1.5},
        "encoding": {
            "y": {"field": "y", "type": "quantitative", "scale": {"zero": False}},
            "tooltip": [
                {"field": "curve", "title": "curve"},
                {"field": "x", "type": "quantitative", "title": "at"},
                {"field": "y", "type": "quantitative", "title": "value", "format": ".4~g"},
            ],
        },
    }


def _error_bars() -> JsonObject:
    return {
        "mark": {"type": "errorbar", "ticks": True},
        "encoding": {
            "y": {"field": "low", "type": "quantitative", "scale": {"zero": False}},
            "y2": {"field": "high"},
        },
    }


def _chart(
    points: list[JsonValue],
    *,
    x: str,
    y: str,
    layers: list[JsonValue],
    names: Sequence[str] = (),
    label_limit: int = NARROW_LABEL,
) -> JsonObject:
    """Builds a chart; `names` are those of its curves in the order of their colours."""
    found = dict.fromkeys(point["curve"] for point in points if isinstance(point, dict))
    legend: JsonObject = {
        "orient": "top",
        "title": None,
        "labelLimit": label_limit,
        "columns": LEGEND_COLUMNS,
        "symbolType": "stroke",
    }
    domain: JsonObject = {"domain": list(names)} if names else {}
    return {
        "data": {"values": points},
        "height": HEIGHT,
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "title": x,
                "axis": _x_axis(x),
            },
            "y": {"title": y, "axis": {"format": ",~f", "tickCount": 4}},
            "color": {
                "field": "curve",
                "type": "nominal",
                "scale": {"range": list(PALETTE), **domain},
                "legend": legend if max(len(found), len(names)) > 1 else None,
            },
            "strokeDash": {
                "field": "curve",
                "type": "nominal",
                "scale": domain,
                "legend": legend if max(len(found), len(names)) > 1 else None,
            },
        },
        "layer": layers,
    }


def has_legend(chart: JsonObject) -> bool:
    """Returns true if a chart has several curves, whose names need room above them."""
    encoding: Any = chart["encoding"]
    return encoding["color"]["legend"] is not None


def _x_axis(name: str) -> JsonObject:
    if name == "hours":
        return {"format": "~g", "grid": False}
    return {"tickMinStep": 1, "format": ",d", "grid": False}


def curve_rows(stage: StageHistory, group: CurveGroup) -> list[tuple[str, int, float]]:
    """Returns the newest value of each curve: the chart's content for those who cannot see it."""
    rows = []
    for name in group.names:
        curve = stage.curve(name)
        if curve:
            newest = max(curve)
            rows.append((name, newest, curve[newest]))
    return rows
