"""Several runs beside one another: charts, numbers, and what differs in their plans."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tests.unit.studio.fake_run import FakeStudio
from tests.unit.studio.test_history import STAGE, Events, history_of, points_of
from tests.unit.studio.test_runs import a_run
from trinity.api.v1 import buffer_pb2, synchronizer_pb2
from trinity.errors import UserError
from trinity.run.progress.view import Evaluation, MeanWithError
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.studio import widgets
from trinity.studio.comparison import (
    ABSENT,
    MAX_COMPARED,
    Axis,
    ComparedStage,
    compared_charts,
    comparison_row,
    differences,
    distinct_labels,
    read_plan,
)
from trinity.studio.history import RunHistory
from trinity.studio.pages import compare, runs


def a_history(*rewards: float, accuracy: float | None = None) -> RunHistory:
    """A stage whose steps take one second each."""
    events = Events()
    listed = [events.event(opened=buffer_pb2.StageOpened(total_train_steps=10))]
    for step, reward in enumerate(rewards, 1):
        batch = buffer_pb2.BatchComposed(step=step, metrics={"reward/mean": reward})
        listed += [events.event(batch=batch), events.step(step, actor__loss=1.0)]
    if accuracy is not None:
        listed.append(events.evaluation("math", 4, accuracy))
    return history_of(*listed)


def a_stage(label: str, history: RunHistory) -> ComparedStage:
    return ComparedStage(label=label, history=history.stages[STAGE])


def curves_of(chart: JsonObject) -> dict[str, list[tuple[float, float]]]:
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points_of(chart):
        found.setdefault(point["curve"], []).append((point["x"], point["y"]))
    return found


def test_runs_share_a_chart_and_keep_their_colours_in_all() -> None:
    first = a_stage("a", a_history(0.1, 0.2))
    second = a_stage("b", a_history(0.3, accuracy=0.5))
    charts = dict(compared_charts([first, second], Axis.STEPS))
    assert list(charts)[:2] == ["math: accuracy", "Reward"]
    assert curves_of(charts["Reward"]) == {"a": [(1, 0.1), (2, 0.2)], "b": [(1, 0.3)]}
    for chart in charts.values():
        encoding: Any = chart["encoding"]
        assert encoding["color"]["scale"]["domain"] == ["a", "b"]


def test_curves_over_hours_count_from_the_opening_of_the_stage() -> None:
    charts = dict(compared_charts([a_stage("a", a_history(0.1, 0.2))], Axis.HOURS))
    hours = [x * 3600 for x, _ in curves_of(charts["Reward"])["a"]]
    assert hours == pytest.approx([2.0, 4.0])


def test_a_run_before_its_first_step_has_no_chart_and_no_numbers() -> None:
    stage = a_stage("a", a_history())
    assert list(compared_charts([stage], Axis.STEPS)) == []
    assert (comparison_row(stage).step, comparison_row(stage).reward) == (0, None)


def test_the_best_evaluation_names_its_version() -> None:
    row = comparison_row(a_stage("a", a_history(0.5, accuracy=0.25)))
    assert row.best == "math 0.25 (v4)"


def test_an_evaluation_without_a_successful_run_is_not_the_best() -> None:
    history = a_history(0.5, accuracy=0.25)
    history.stages[STAGE].evaluations["math"] = {
        version: Evaluation(
            version=version,
            stage="rft",
            taskset="math",
            seconds=1.0,
            metrics={"accuracy": MeanWithError(mean=mean, standard_error=0.0, n=1)},
            num_tasks=1,
            num_failed=3,
            num_runs=4,
            failed_count_zero=True,
        )
        for version, mean in ((1, math.nan), (4, 0.25))
    }
    best = comparison_row(a_stage("a", history)).best
    assert best == "math 0.25 (v4, 3 of 4 runs failed and count 0)"


def test_equal_labels_are_told_apart() -> None:
    assert distinct_labels(["a", "b", "a"]) == ["a (1)", "b", "a (2)"]


def a_plan(*stages: tuple[str, JsonObject]) -> JsonObject:
    listed: list[JsonValue] = [{"name": name, "config": config} for name, config in stages]
    return read_plan(json.dumps({"stages": listed}))


def test_differences_are_keys_whose_values_differ() -> None:
    first = a_plan(("rft", {"name": "a", "seed": 1, "model": {"lr": 0.1, "path": "/m"}}))
    second = a_plan(("other", {"name": "b", "seed": 1, "model": {"lr": 0.2, "path": "/m"}}))
    third = a_plan(("rft", {"name": "c", "seed": 2, "model": {"path": "/m"}}))
    found = {
        difference.key: difference.values for difference in differences([first, second, third])
    }
    assert found == {"seed": ("1", "1", "2"), "model.lr": ("0.1", "0.2", ABSENT)}
    assert differences([first, first]) == []


def test_stages_are_compared_by_their_names_and_lists_by_their_places() -> None:
    sets: list[JsonValue] = [{"path": "x"}, {"path": "y"}]
    first = a_plan(("sft", {"tasksets": sets}), ("rft", {"betas": [0.9, 0.99]}))
    second = a_plan(("rft", {"betas": [0.9, 0.95]}), ("sft", {"tasksets": sets[:1]}))
    assert [difference.key for difference in differences([first, second])] == [
        "sft: tasksets[1].path",
        "rft: betas",
    ]


def test_zero_and_false_and_null_are_not_the_same() -> None:
    plans = [a_plan(("rft", {"key": value})) for value in (0, False, None)]
    assert differences(plans)[0].values == ("0", "false", "null")


def test_secrets_are_hidden_and_long_values_cut() -> None:
    first = a_plan(("rft", {"monitor": {"api_key": "s3cret-one"}, "text": "x" * 5_000}))
    second = a_plan(("rft", {"monitor": {"api_key": "s3cret-two"}, "text": "y"}))
    shown = str(differences([first, second]))
    assert "s3cret" not in shown
    assert len(shown) < 1_000


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"stages": [{}]}', '{"stages": 3}'])
def test_a_plan_of_another_version_is_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_plan(text)


def test_a_choice_is_toggled_and_bounded() -> None:
    assert compare.toggle(["a"], "b") == ["a", "b"]
    assert compare.toggle(["a", "b"], "a") == ["b"]
    full = [str(number) for number in range(MAX_COMPARED)]
    assert compare.toggle(full, "more") == full


def a_page() -> None:
    from trinity.studio.pages import compare

    compare.show()


def test_the_page_shows_two_runs_and_what_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: dict[str, list[tuple[str, ...]]] = {}

    def show_table(name: str, columns: object, rows: list[Any], **_: object) -> None:
        del columns
        shown[name] = [row.cells for row in rows]

    for page in (compare, runs):
        monkeypatch.setattr(page, "show_table", show_table)
        monkeypatch.setattr(widgets, "show_table", show_table)
    jobs = [a_run(tmp_path, f"sums/{name}") for name in ("first", "second")]
    plans = [json.dumps({"stages": [{"name": "rft", "config": {"seed": n}}]}) for n in (1, 2)]
    studios = {
        job: FakeStudio(job, GetExperiment=synchronizer_pb2.GetExperimentResponse(plan_json=plan))
        for job, plan in zip(jobs, plans, strict=True)
    }
    for studio, reward in zip(studios.values(), (0.1, 0.9), strict=True):
        studio.history = a_history(reward)
    shown_studio = FakeStudio(tmp_path)
    monkeypatch.setattr(shown_studio, "view", lambda job: studios[job].view(job))
    shown_studio.show()
    app = AppTest.from_function(a_page)
    app.query_params["compare"] = [str(job) for job in jobs]
    app.run(timeout=30)
    assert not app.exception
    assert [cells[0] for cells in shown["Runs to compare"]] == ["✓", "✓"]
    assert shown["What differs"] == [("seed", "1", "2")]
    assert [cells[2] for cells in shown["Runs in numbers"]] == ["0.100", "0.900"]
