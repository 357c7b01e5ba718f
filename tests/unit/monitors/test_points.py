"""Monitors show each step once, under the names that users know, in the run of who did it."""

from tests.unit.monitors.builders import (
    EXPERIMENT,
    EXPLORER,
    RUNS_OF_TASK,
    TRAINER,
    names,
    points_of,
)
from tests.unit.progress.builders import batch, evaluated, opened, trained, whole_run
from trinity.run.monitors.points import MonitorRun, PointBuilder


def test_what_is_told_again_is_shown_once() -> None:
    once = points_of(whole_run())
    again = points_of([*whole_run(), trained(16, "rft", 2, replayed=True), batch(17, "rft", 2, 0)])
    assert again == once
    assert [p.step for p in once if p.series == TRAINER] == [1, 2, 3]


def test_the_same_step_of_another_stage_is_another() -> None:
    found = points_of([trained(1, "sft", 1), trained(2, "rft", 1)])
    assert [point.series.stage for point in found] == ["sft", "rft"]


def test_rollouts_and_evaluations_are_the_explorers_and_samples_the_trainers() -> None:
    composed = batch(1, "rft", 1, 0.5)
    composed.batch.metrics.update(
        {
            "num_groups": 4.0,
            "group/reward_std": 0.25,
            "rollout/accuracy/mean": 0.75,
            "sample/model_version/max": 3.0,
            "sample/model_version_drift/mean": 1.0,
            "response_length/mean": 20.0,
        }
    )
    explored, sampled = points_of([composed])
    assert explored.series == EXPLORER
    assert explored.figures == {
        "experience_pipeline/experience_count": 8.0,
        "experience_pipeline/group_advantages/reward_std/mean": 0.25,
        "rollout/accuracy/mean": 0.75,
        "rollout/finished_task_count": 4.0,
        "rollout/model_version": 3.0,
        "rollout/reward/mean": 0.5,
    }
    assert sampled.series == TRAINER
    assert sampled.figures == {
        "sample/model_version/max": 3.0,
        "sample/model_version_drift/mean": 1.0,
        "sample/task_count": 4.0,
    }


def test_an_evaluation_says_how_often_a_task_was_run() -> None:
    (point,) = points_of([evaluated(1, 2, 0.9)])
    assert (point.series, point.step) == (EXPLORER, 2)
    assert point.figures["eval/held_out/accuracy/mean@4"] == 0.9
    assert point.figures["eval/held_out/finished_task_count"] == 1000


def test_each_of_several_evaluations_of_a_version_tells_its_own_time() -> None:
    (alone,) = points_of([evaluated(1, 2, 0.9)])
    assert "time/eval" in alone.figures
    other = evaluated(2, 2, 0.8)
    other.evaluation.taskset = "hard"
    points = PointBuilder({**RUNS_OF_TASK, ("rft", "hard"): 1})
    found = [
        point
        for event in (evaluated(1, 2, 0.9), other)
        for point in points.points_of_event(event).points
    ]
    names = [[name for name in point.figures if name.startswith("time/")] for point in found]
    assert names == [["time/eval/held_out"], ["time/eval/hard"]]


def test_what_several_runs_of_a_task_tell_stands_beside_their_mean() -> None:
    event = evaluated(1, 2, 0.9)
    event.evaluation.metrics[0].of_runs.update({"std@4": 0.3, "best@2": 0.95})
    event.evaluation.num_failed = 2
    (point,) = points_of([event])
    assert point.figures["eval/held_out/failed_run_count"] == 2.0
    assert point.figures["eval/held_out/accuracy/std@4"] == 0.3
    assert point.figures["eval/held_out/accuracy/best@2"] == 0.95


def test_what_the_mean_of_tasks_hides_is_told_on_demand() -> None:
    event = evaluated(1, 2, 0.9)
    event.evaluation.metrics[0].of_tasks.update({"max": 1.0, "min": 0.0, "std": 0.3})
    mean = "eval/held_out/accuracy/mean@4"
    (short,), (detailed,) = points_of([event]), points_of([event], is_detailed=True)
    assert [name for name in short.figures if name.startswith(mean)] == [mean]
    assert detailed.figures[f"{mean}/max"] == 1.0
    assert detailed.figures[f"{mean}/min"] == 0.0
    assert detailed.figures[f"{mean}/std"] == 0.3


def test_what_is_no_number_is_left_out() -> None:
    bad = trained(1, "rft", 1)
    bad.step.metrics["actor/grad_norm"] = float("nan")
    (point,) = points_of([bad])
    assert "actor/grad_norm" not in point.figures
    assert points_of([opened(2, "rft", 5)]) == []


def test_an_experiment_has_two_runs_and_stages_have_their_own() -> None:
    single = names(has_stages=False)
    assert [single.name_of(series) for series in (EXPLORER, TRAINER)] == [
        "first_explorer",
        "first_trainer",
    ]
    assert names().name_of(MonitorRun(stage="sft", role="trainer")) == "first/sft_trainer"


def test_a_runs_id_is_the_same_for_an_experiment_that_goes_on_and_no_other() -> None:
    ids = [
        names(EXPERIMENT).id_of(TRAINER),
        names(EXPERIMENT).id_of(EXPLORER),
        names("another").id_of(TRAINER),
    ]
    assert ids[0] == names(EXPERIMENT).id_of(TRAINER)
    assert len(set(ids)) == 3
