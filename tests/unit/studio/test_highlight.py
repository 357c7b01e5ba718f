"""The result at a glance: which version is best, and how it came there."""

from trinity.run.progress.summary import RunSummary, StageSummary
from trinity.run.progress.view import Evaluation, MeanWithError
from trinity.studio.highlight import of_history, of_summary
from trinity.studio.history import RunHistory, StageHistory


def evaluation(version: int, mean: float, *, num_failed: int = 0) -> Evaluation:
    return Evaluation(
        stage="rft",
        version=version,
        taskset="held_out",
        num_failed=num_failed,
        num_runs=100,
        failed_count_zero=True,
        metrics={"accuracy": MeanWithError(mean=mean, standard_error=0.01, n=100)},
        seconds=1.0,
    )


def summary(*evaluations: Evaluation) -> RunSummary:
    best = max(evaluations, key=lambda done: done.metrics["accuracy"].mean, default=None)
    stage = StageSummary(
        name="rft",
        mode="both",
        steps=3,
        experiences=6,
        tokens=60,
        seconds=1.0,
        seconds_to_first_batch=1.0,
        evaluations=evaluations,
        rewards=(0.5, 0.6, 0.7),
    )
    return RunSummary(
        label="sums/first",
        state="finished",
        reason="",
        first_evaluation=evaluations[0] if evaluations else None,
        final_evaluation=evaluations[-1] if evaluations else None,
        best_evaluation=best,
        steps=3,
        experiences=6,
        tokens=60,
        starts=1,
        seconds={"total": 1.0},
        stages=(stage,),
        versions={},
    )


def test_the_best_version_is_named_with_its_score_and_the_last_one_too() -> None:
    found = of_summary(summary(evaluation(0, 0.5), evaluation(2, 0.9), evaluation(3, 0.8)))
    assert found is not None
    assert (found.title, found.gain) == ("90.0%", "50.0%")
    assert found.claim == "accuracy on held_out with version 2; the last, 3, has 80.0%"
    assert found.rewards == ((1, 0.5), (2, 0.6), (3, 0.7))


def test_failed_runs_of_the_best_version_are_told() -> None:
    found = of_summary(summary(evaluation(0, 0.5), evaluation(3, 0.9, num_failed=4)))
    assert found is not None
    assert ", the last, 4 of 100 runs failed and count 0" in found.claim


def test_a_run_that_follows_on_has_its_result_so_far() -> None:
    stage = StageHistory(name="rft", total_steps=10, step_millis={1: 1, 2: 2})
    assert of_history(RunHistory(stages={"rft": stage})) is None
    stage.evaluations["held_out"] = {
        version: Evaluation(
            version=version,
            stage="rft",
            taskset="math",
            seconds=1.0,
            metrics={"reward": MeanWithError(mean=mean, standard_error=0.1, n=9)},
            num_tasks=9,
            num_failed=0,
            num_runs=9,
            failed_count_zero=True,
        )
        for version, mean in ((2, 1.5), (0, 0.25))
    }
    found = of_history(RunHistory(stages={"rft": stage}))
    assert found is not None
    assert (found.title, found.gain) == ("1.5", "0.25")
    assert found.facts == (("train steps", "2 of 10"),)


def test_a_run_without_evaluations_has_none() -> None:
    assert of_summary(summary()) is None
