"""The curves of a run, from its events."""

import math
from typing import Any

import pytest

from trinity.api.v1 import buffer_pb2
from trinity.runtime.json_values import JsonObject
from trinity.studio import history
from trinity.studio.curves import (
    GROUPS,
    MAX_CURVES,
    MAX_POINTS,
    PALETTE,
    curve_chart,
    evaluation_charts,
    evaluation_rows,
    has_legend,
    short_labels,
)
from trinity.studio.history import MAX_SAMPLE_CHARS, RunHistory

STAGE = "rft"


class Events:
    """Numbers events, as a buffer does."""

    def __init__(self) -> None:
        self.number = 0

    def event(self, **kind: object) -> buffer_pb2.ProgressEvent:
        self.number += 1
        return buffer_pb2.ProgressEvent(
            number=self.number,
            stage=STAGE,
            unix_millis=1_000 * self.number,
            **kind,  # type: ignore[arg-type]
        )

    def step(self, step: int, **metrics: float) -> buffer_pb2.ProgressEvent:
        named = {name.replace("__", "/"): value for name, value in metrics.items()}
        return self.event(step=buffer_pb2.StepTrained(step=step, metrics=named))

    def evaluation(self, taskset: str, version: int, mean: float) -> buffer_pb2.ProgressEvent:
        metric = buffer_pb2.MetricSummary(
            name="accuracy", mean=mean, standard_error=0.02, num_tasks=500
        )
        return self.event(
            evaluation=buffer_pb2.EvaluationDone(version=version, taskset=taskset, metrics=[metric])
        )


def history_of(*events: buffer_pb2.ProgressEvent) -> RunHistory:
    found = RunHistory()
    for event in events:
        found.apply(event)
    return found


def test_steps_and_batches_become_curves() -> None:
    events = Events()
    batch = buffer_pb2.BatchComposed(step=1, num_rows=8, metrics={"reward/mean": 0.25, "other": 1})
    stage = history_of(
        events.event(opened=buffer_pb2.StageOpened(total_train_steps=10, num_tasks=64)),
        events.event(batch=batch),
        events.step(1, actor__loss=0.5, unknown=1.0),
    ).stages[STAGE]
    assert (stage.total_steps, stage.last_step) == (10, 1)
    assert sorted(stage.steps | stage.batches) == ["actor/loss", "reward/mean"]
    assert stage.curve("reward/mean") == {1: 0.25}


def test_an_event_that_comes_twice_counts_once_and_a_step_that_is_replayed_replaces() -> None:
    events = Events()
    first, again = events.step(1, actor__loss=0.5), events.step(1, actor__loss=0.7)
    assert history_of(first, first).stages[STAGE].curve("actor/loss") == {1: 0.5}
    assert history_of(first, again, first).stages[STAGE].curve("actor/loss") == {1: 0.7}


def test_what_is_no_number_stays_out_of_the_scale() -> None:
    events = Events()
    stage = history_of(
        events.step(1, actor__loss=math.nan), events.step(2, actor__loss=math.inf)
    ).stages[STAGE]
    assert stage.curve("actor/loss") == {}
    assert curve_chart(stage, GROUPS[1]) is None


def test_each_taskset_has_its_own_curve_with_error_bars() -> None:
    events = Events()
    stage = history_of(
        events.evaluation("math", 0, 0.5),
        events.evaluation("code", 0, 0.1),
        events.evaluation("math", 10, math.nan),
        events.evaluation("math", 20, 0.6),
    ).stages[STAGE]
    charts = dict(evaluation_charts(stage))
    points = points_of(charts["accuracy"])
    assert [(point["curve"], point["x"], point["y"]) for point in points] == [
        ("math", 0, 0.5),
        ("math", 20, 0.6),
        ("code", 0, 0.1),
    ]
    assert points[0]["high"] == pytest.approx(0.52)


def test_of_many_tasksets_as_many_are_drawn_as_there_are_colours_and_all_are_told() -> None:
    events = Events()
    first = events.evaluation("set-0", 0, 0.5)
    measured = [events.evaluation(f"set-{n}", 3, n / 40) for n in range(40)]
    stage = history_of(first, *measured).stages[STAGE]
    chart = dict(evaluation_charts(stage))["accuracy"]
    assert {point["curve"] for point in points_of(chart)} == {f"set-{n}" for n in range(6)}
    assert len(PALETTE) == MAX_CURVES
    rows = evaluation_rows(stage)
    assert len(rows) == 40
    assert rows[39] == ("accuracy on set-39", 3, 39 / 40)


def test_long_names_that_begin_alike_are_told_apart_in_a_legend() -> None:
    long = "a-taskset-of-the-lab-in-spring"
    assert short_labels([f"{long}-01", f"{long}-02"]) == {f"{long}-01": "…01", f"{long}-02": "…02"}
    assert list(short_labels([long, f"{long}-hard"]).values()) == ["…spring", "…spring-hard"]
    for kept in (["math", "code"], [long], [long, "code"]):
        assert list(short_labels(kept).values()) == kept


def test_only_several_curves_need_a_legend() -> None:
    events = Events()
    stage = history_of(events.step(1, actor__loss=1.0), events.evaluation("a", 0, 1.0)).stages[
        STAGE
    ]
    loss = curve_chart(stage, GROUPS[1])
    assert loss is not None and not has_legend(loss)
    assert not has_legend(dict(evaluation_charts(stage))["accuracy"])
    both = history_of(events.evaluation("a", 0, 1.0), events.evaluation("b", 0, 1.0))
    assert has_legend(dict(evaluation_charts(both.stages[STAGE]))["accuracy"])


def points_of(chart: JsonObject) -> list[dict[str, Any]]:
    """The points that a chart shows."""
    data: Any = chart["data"]
    found: list[dict[str, Any]] = data["values"]
    return found


def test_a_long_curve_is_thinned_and_keeps_its_newest_point() -> None:
    events = Events()
    stage = history_of(*(events.step(n, actor__loss=n) for n in range(1, 2_503))).stages[STAGE]
    chart = curve_chart(stage, GROUPS[1])
    assert chart is not None
    values = points_of(chart)
    assert len(values) <= MAX_POINTS + 1
    assert values[-1] == {"x": 2_502, "y": 2_502.0, "curve": "loss"}


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events()
    monkeypatch.setattr(history, "MAX_STEPS", 100)
    stage = history_of(*(events.step(n, actor__loss=n) for n in range(1, 1_001))).stages[STAGE]
    assert len(stage.step_millis) <= 100
    assert len(stage.curve("actor/loss")) <= 100
    assert stage.last_step == 1_000


def test_a_sample_of_a_megabyte_is_cut_and_says_so() -> None:
    events = Events()
    sample = buffer_pb2.Sample(prompt="p", response="x" * 2**20)
    stage = history_of(events.event(samples=buffer_pb2.Samples(samples=[sample]))).stages[STAGE]
    shown = stage.samples[0]
    assert shown.reward is None
    assert len(shown.response) < MAX_SAMPLE_CHARS + 100
    assert shown.response.endswith(f"[{2**20 - MAX_SAMPLE_CHARS:,} more characters]")
