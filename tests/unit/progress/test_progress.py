"""What a run shows follows from its events, however often they are replayed."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.config.builders import config
from tests.unit.progress.builders import (
    batch,
    changed,
    empty_view,
    opened,
    trained,
    whole_run,
)
from trinity.api.v1 import buffer_pb2
from trinity.config.plan.parts import StoredBatches
from trinity.config.planning import plan_experiment
from trinity.run.progress import figures
from trinity.run.progress.curves import change_lines, draw_curves, limits, smooth
from trinity.run.progress.lines import LineReporter, evaluation_line, step_line
from trinity.run.progress.reporter import render
from trinity.run.progress.summary import read_finished, summarize, write_summary
from trinity.run.progress.view import TIME_PARTS, RunView, StageProgressView
from trinity.run.runs import result_lines


def finished_view() -> RunView:
    view = empty_view()
    for event in whole_run():
        view.apply(event)
    return view


def test_a_step_trained_again_after_a_crash_counts_once() -> None:
    view = finished_view()
    view.apply(trained(16, "rft", 3, replayed=True))
    assert view.stages["rft"].last_step == 3
    assert view.stages["rft"].num_tokens == 300


def test_an_event_of_an_unknown_stage_is_ignored() -> None:
    view = empty_view()
    view.apply(opened(1, "gone", 5))
    assert view.last_event == 1


def test_time_shares_are_of_parts_that_do_not_overlap() -> None:
    shares = figures.time_shares(finished_view().stages["rft"])
    assert shares == [("waiting for a batch", 0.75), ("training", 0.25)]


def test_figures_that_nobody_shows_are_not_kept() -> None:
    """A launcher has those of all steps, for days."""
    composed, step = batch(1, "rft", 1, 0.5), trained(2, "rft", 1)
    for metrics in (composed.batch.metrics, step.step.metrics):
        metrics.update({f"response_length/{number}": 1.0 for number in range(100)})
    view = empty_view()
    for event in (composed, step):
        view.apply(event)
    assert view.stages["rft"].batches[1] == {"reward/mean": 0.5}
    shown = {"actor/loss", "perf/total_num_tokens", *TIME_PARTS}
    assert set(view.stages["rft"].steps[1]) <= shown


def test_a_checkpoint_counts_in_the_step_that_had_one() -> None:
    view = finished_view()
    steps = view.stages["rft"].steps
    steps[max(steps)]["time/save_checkpoint"] = 2.0 * len(steps)
    assert figures.time_shares(view.stages["rft"]) == [
        ("checkpoint", 0.5),
        ("waiting for a batch", 0.375),
        ("training", 0.125),
    ]


def test_the_time_left_follows_the_latest_pace() -> None:
    view = empty_view()
    for event in whole_run()[:11]:
        view.apply(event)
    assert figures.seconds_left(view.stages["rft"]) == pytest.approx(2.0)


def test_batches_that_are_trained_again_end_with_the_last_of_them() -> None:
    stored = StoredBatches(experiment_id="e", stage="rft", first_step=1, last_step=2)
    plan = plan_experiment(config())
    changed = plan.stages[0].model_copy(update={"stored_batches": stored})
    view = RunView.from_plan(plan.model_copy(update={"stages": (changed,)}))
    [again] = view.stages.values()
    view.apply(opened(1, again.name, 12))
    assert again.total_steps == 2


def test_a_time_when_the_run_stood_still_is_no_pace() -> None:
    stage = empty_view().stages["rft"]
    stage.step_millis = [1000, 2000, 3000, 3_603_000, 3_604_000]
    assert figures.seconds_per_step(stage) == 1.0


def test_a_finished_run_is_found_again_and_no_other(tmp_path: Path) -> None:
    for state in ("failed", "finished"):
        summary = summarize(
            finished_view(), label="a/b", state=state, reason="", starts=2, seconds={"total": 9.0}
        )
        write_summary(summary, tmp_path / "summary.json")
        assert read_finished(tmp_path) == (summary if state == "finished" else None)
    assert read_finished(tmp_path / "nowhere") is None


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.4, "1:05"), (3_725, "1:02:05")])
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert figures.format_clock(seconds) == text


def test_plain_lines_show_samples_and_evaluations() -> None:
    lines: list[str] = []
    view, reporter = empty_view(), LineReporter(lines.append)
    for event in whole_run():
        view.apply(event)
        reporter.event(view, event)
    text = "\n".join(lines)
    assert "'1+1=' -> '2'  (reward 1)" in text
    assert "accuracy 0.900 ± 0.010  (n=1000)" in text
    assert "[rft] step 3/3" in text


def test_the_screen_names_the_stage_the_reward_and_the_time() -> None:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(render(finished_view(), "examples/addition"))
    console.file.close()
    text = console.export_text()
    for part in ("rft", "3/3", "reward", "accuracy", "waiting for a batch 75%"):
        assert part in text


def test_the_summary_names_first_best_and_final(tmp_path: Path) -> None:
    summary = summarize(
        finished_view(), label="a/b", state="finished", reason="", starts=1, seconds={"total": 9.0}
    )
    write_summary(summary, tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())
    accuracies = [
        written[f"{which}_evaluation"]["metrics"]["accuracy"]["mean"]
        for which in ("first", "best", "final")
    ]
    assert accuracies == [0.6, 0.9, 0.85]
    assert written["steps"] == 5
    assert written["versions"]["python"]


def test_an_evaluation_whose_runs_all_failed_is_not_the_best() -> None:
    view = finished_view()
    stage = view.stages["rft"]
    failed = {"metrics": {}, "num_failed": 1000}
    stage.evaluations.insert(0, stage.evaluations[0].model_copy(update=failed))
    summary = summarize(view, label="a/b", state="finished", reason="", starts=1, seconds={})
    assert summary.best_evaluation is not None
    assert summary.best_evaluation.metrics["accuracy"].mean == 0.9


def test_a_warning_is_said_when_it_begins_and_not_again() -> None:
    lines: list[str] = []
    view, reporter = empty_view(), LineReporter(lines.append)
    for event in [opened(1, "rft", 3), *(trained(1 + step, "rft", step) for step in (1, 2, 3))]:
        if event.WhichOneof("event") == "step" and event.step.step > 1:
            event.step.metrics["warning/zero_reward_variance"] = 1.0
            event.step.metrics["warning/untrained_rows"] = 3.0
        view.apply(event)
        reporter.event(view, event)
    assert [line for line in lines if "warning at step" in line] == [
        "[rft] warning at step 2: 3 rows have no token to train on, "
        "they are bad, too long or masked",
        "[rft] warning at step 2: all runs of each task got the same reward, "
        "there is nothing to learn",
    ]


def test_rewards_below_zero_are_in_the_picture() -> None:
    assert limits([0.2, 0.9]) == (-0.02, 1.02)
    low, high = limits([-1.0, 2.0])
    assert low < -1.0 and high > 2.0


def test_no_time_is_left_at_the_last_step() -> None:
    view = empty_view()
    for event in [opened(1, "rft", 3), *(trained(1 + step, "rft", step) for step in (1, 2, 3))]:
        view.apply(event)
    assert "left" not in step_line(view.stages["rft"], replayed=False)


def test_the_picture_is_drawn_and_nothing_without_steps(tmp_path: Path) -> None:
    draw_curves(finished_view(), tmp_path / "curves.png", "a/b")
    draw_curves(empty_view(), tmp_path / "none.png", "a/b")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "none.png").exists()


def test_smoothing_starts_with_what_there_is() -> None:
    assert smooth([1.0, 3.0, 5.0], window=2) == [1.0, 2.0, 4.0]


def test_failed_runs_are_shown_beside_the_figure() -> None:
    view = finished_view()
    [stage] = [stage for stage in view.stages.values() if stage.evaluations]
    failed: dict[str, Any] = {"num_failed": 3, "num_runs": 1000, "failed_count_zero": True}
    stage.evaluations[:] = [done.model_copy(update=failed) for done in stage.evaluations]
    expected = "3 of 1,000 runs failed and count 0)"
    assert evaluation_line(stage.evaluations[0]).endswith(f"(n=1000, {expected}")
    summary = summarize(
        view, label="x", state="finished", reason="", starts=1, seconds={"total": 1.0}
    )
    lines = [line for line in result_lines(summary) if "evaluation" in line]
    assert [line.partition(", ")[2] for line in lines] == [expected] * 3
    assert summary.best_evaluation is not None
    assert summary.best_evaluation.model_dump().items() >= failed.items()
    left_out = stage.evaluations[0].model_copy(update={"failed_count_zero": False})
    assert "3 of 1,000 runs failed and are left out)" in evaluation_line(left_out)


def test_changed_settings_are_told_kept_and_drawn(tmp_path: Path) -> None:
    view = finished_view()
    lines: list[str] = []
    event = changed(view.last_event + 1, "rft", 2)
    view.apply(event)
    LineReporter(lines.append).event(view, event)
    assert lines == [
        "[rft] changed algorithm.optimizer.lr: 1e-06 -> 0.5 from step 2",
        "[rft] changed trainer.max_token_len_per_gpu: 64 -> 32 from step 2, which may round "
        "differently",
    ]
    summary = summarize(view, label="a/b", state="finished", reason="", starts=2, seconds={})
    assert [f"[rft] changed {change}" for change in summary.stages[-1].changes] == lines
    draw_curves(finished_view(), tmp_path / "plain.png", "a/b")
    draw_curves(view, tmp_path / "changed.png", "a/b")
    assert (tmp_path / "changed.png").read_bytes() != (tmp_path / "plain.png").read_bytes()
    assert change_lines(view.stages["rft"]) == {2: "lr 0.5, max_token_len_per_gpu 32"}


def test_notices_that_differ_in_numbers_alone_are_one_line_with_a_count() -> None:
    said: list[str] = []
    reporter = LineReporter(said.append)
    view = RunView(stages={"rft": StageProgressView(name="rft", mode="both")})
    for row in range(40):
        text = f"explore step 1: 1 task was given up, such as row {row} of train: ValueError: no"
        event = buffer_pb2.ProgressEvent(
            number=row + 1, stage="rft", notice=buffer_pb2.Notice(text=text)
        )
        view.apply(event)
        reporter.event(view, event)
    assert len(said) == 1
    reporter.close()
    assert len(said) == 2 and said[1].startswith("39 more like: [rft] explore step #: ")
    reporter.close()
    assert len(said) == 2
