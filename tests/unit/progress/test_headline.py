"""Several evaluation tasksets: each has its own results, and one of them is the headline."""

from pathlib import Path

import pytest

from tests.unit.config.builders import config
from tests.unit.progress.test_progress import finished_view
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.progress import figures
from trinity.run.progress.curves import draw_curves
from trinity.run.progress.lines import evaluation_line
from trinity.run.progress.summary import RunSummary, summarize
from trinity.run.progress.view import MeanWithError, RunView, shown_order
from trinity.run.runs import result_lines


def plan_of(best: str = "") -> ExperimentPlan:
    listed = [{"name": name, "path": f"/data/{name}.jsonl"} for name in ("easy", "hard")]
    return plan_experiment(
        config(
            buffer={"explorer_input": {"eval_tasksets": listed}}, explorer={"best_taskset": best}
        )
    )


def measured(headline: str) -> RunView:
    """The run of the other tests, whose evaluations are on `easy`, and on `hard` right after."""
    view = finished_view()
    stage = view.stages["rft"]
    stage.headline_taskset = headline
    both = []
    for done in stage.evaluations:
        accuracy = done.metrics["accuracy"]
        lower = {"accuracy": accuracy.model_copy(update={"mean": accuracy.mean / 2})}
        both += [
            done.model_copy(update={"taskset": "easy"}),
            done.model_copy(update={"taskset": "hard", "metrics": lower}),
        ]
    stage.evaluations[:] = both
    return view


def summary_of(view: RunView) -> RunSummary:
    seconds = {"total": 9.0}
    return summarize(view, label="a/b", state="finished", reason="", starts=1, seconds=seconds)


@pytest.mark.parametrize(("headline", "best"), [("easy", 0.9), ("hard", 0.45)])
def test_each_taskset_has_its_own_results_and_one_is_the_headline(
    headline: str, best: float
) -> None:
    summary = summary_of(measured(headline))
    assert summary.best_evaluation is not None and summary.final_evaluation is not None
    assert summary.best_evaluation.taskset == summary.final_evaluation.taskset == headline
    assert summary.best_evaluation.metrics["accuracy"].mean == pytest.approx(best)
    by_name = {of.taskset: of for of in summary.tasksets}
    assert next(iter(by_name)) == headline
    found = [by_name["hard"].first, by_name["hard"].best, by_name["hard"].final]
    assert [done.metrics["accuracy"].mean for done in found] == pytest.approx([0.3, 0.45, 0.425])
    lines = list(result_lines(summary))
    assert [line.split()[0] for line in lines[:6]] == ["first", "best", "final"] * 2
    assert all(f" on {headline}: " in line for line in lines[:3])


def test_the_screen_shows_the_headline() -> None:
    done = figures.last_evaluation(measured("easy").stages["rft"])
    assert done is not None and done.taskset == "easy", "not the one measured last"


def test_the_first_in_the_file_is_the_headline_or_the_one_that_is_asked_for() -> None:
    assert plan_of().stages[0].headline_taskset == "easy"
    assert plan_of("hard").stages[0].headline_taskset == "hard"
    [stage] = RunView.from_plan(plan_of("hard")).stages.values()
    assert stage.headline_taskset == "hard"
    with pytest.raises(
        UserError, match=r"`explorer\.best_taskset: none` is none of the evaluation"
    ):
        plan_of("none")


def test_the_plot_has_a_line_for_each_taskset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib.axes import Axes

    labels: list[str] = []
    draw = Axes.errorbar

    def noted(axis: Axes, *arguments: object, **named: object) -> object:
        labels.append(str(named["label"]))
        return draw(axis, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Axes, "errorbar", noted)
    draw_curves(measured("hard"), tmp_path / "curves.png", "a/b")
    assert [label.split()[0] for label in labels] == ["hard", "easy"]


def test_accuracy_and_reward_come_first() -> None:
    assert shown_order(["built_by_workflow", "reward", "zeal", "accuracy"]) == [
        *("accuracy", "reward"),
        *("built_by_workflow", "zeal"),
    ]
    done = finished_view().evaluations[0]
    value = MeanWithError(mean=1.0, standard_error=0.0, n=2)
    metrics = {"built_by_workflow": value, **done.metrics}
    line = evaluation_line(done.model_copy(update={"metrics": metrics}))
    assert line.index("accuracy") < line.index("built_by_workflow")
