"""Curves of a run as specifications of charts; titles of metrics stand in them as data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trinity.json_values import JsonObject, JsonValue
from trinity.studio.history import StageHistory

MAX_POINTS = 1_000
"""Points of a curve that a chart gets; more are thinned out evenly."""
HEIGHT = 220
PALETTE = ("#2a6fae", "#b3591a", "#5c4492", "#19796d", "#8a6d00", "#a3325b")
"""Told apart in three kinds of colour blindness; lines have marks of their own, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveGroup:
    """Metrics that share a chart."""

    title: str
    unit: str
    names: tuple[str, ...]


GROUPS = (
    CurveGroup(title="Reward", unit="reward", names=("reward/mean",)),
    CurveGroup(title="Loss", unit="loss", names=("actor/loss",)),
    CurveGroup(title="KL", unit="nats", names=("actor/ppo_kl", "actor/kl")),
    CurveGroup(title="Entropy", unit="nats", names=("actor/entropy",)),
    CurveGroup(title="Gradient norm", unit="norm", names=("actor/grad_norm",)),
    CurveGroup(
        title="Lengths",
        unit="tokens",
        names=("response_length/mean", "response_length/max", "prompt_length/mean"),
    ),
    CurveGroup(title="Staleness", unit="versions", names=("staleness/mean", "staleness/max")),
    CurveGroup(title="Throughput", unit="tokens/s", names=("perf/throughput",)),
)


def curve_chart(stage: StageHistory, group: CurveGroup) -> JsonObject | None:
    """Returns the chart of a group; None if nothing of it was recorded."""
    points = [point for name in group.names for point in _points(name, stage.curve(name))]
    if not points:
        return None
    return _chart(points, x="step", y=group.unit, layers=[_line()])


def evaluation_charts(stage: StageHistory) -> Iterable[tuple[str, JsonObject]]:
    """Yields a metric's name and its chart, with a curve and error bars for each taskset."""
    names: set[str] = {
        name
        for versions in stage.evaluations.values()
        for measured in versions.values()
        for name in measured.metrics
    }
    headline = [name for name in ("accuracy", "reward") if name in names]
    for metric in (*headline, *sorted(names.difference(headline))):
        points = _evaluation_points(stage, metric)
        if points:
            yield metric, _chart(points, x="version", y=metric, layers=[_error_bars(), _line()])


def _evaluation_points(stage: StageHistory, metric: str) -> list[JsonValue]:
    return [
        {
            "x": version,
            "y": found.mean,
            "low": found.mean - found.standard_error,
            "high": found.mean + found.standard_error,
            "n": found.n,
            "curve": taskset,
        }
        for taskset, versions in stage.evaluations.items()
        for version, measured in sorted(versions.items())
        if (found := measured.metrics.get(metric)) is not None and found.mean == found.mean
    ]


def _points(name: str, curve: Mapping[int, float]) -> list[JsonValue]:
    steps = sorted(curve)
    stride = max(1, -(-len(steps) // MAX_POINTS))
    kept = steps[::stride] + (steps[-1:] if steps and (len(steps) - 1) % stride else [])
    return [{"x": step, "y": curve[step], "curve": name} for step in kept]


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


def _chart(points: list[JsonValue], *, x: str, y: str, layers: list[JsonValue]) -> JsonObject:
    num_curves = len({point["curve"] for point in points if isinstance(point, dict)})
    legend: JsonObject = {"orient": "top", "title": None, "labelLimit": 260}
    return {
        "data": {"values": points},
        "height": HEIGHT,
        "encoding": {
            "x": {
                "field": "x",
                "type": "quantitative",
                "title": x,
                "axis": {"tickMinStep": 1, "format": ",d", "grid": False},
            },
            "y": {"title": y, "axis": {"format": "~g", "tickCount": 4}},
            "color": {
                "field": "curve",
                "type": "nominal",
                "scale": {"range": list(PALETTE)},
                "legend": legend if num_curves > 1 else None,
            },
            "strokeDash": {
                "field": "curve",
                "type": "nominal",
                "legend": legend if num_curves > 1 else None,
            },
        },
        "layer": layers,
    }


def curve_rows(stage: StageHistory, group: CurveGroup) -> list[tuple[str, int, float]]:
    """Returns the newest value of each curve: the chart's content for those who cannot see it."""
    rows = []
    for name in group.names:
        curve = stage.curve(name)
        if curve:
            newest = max(curve)
            rows.append((name, newest, curve[newest]))
    return rows
