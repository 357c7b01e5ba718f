"""Results of a run, in lines for a person."""

from collections.abc import Iterator

from trinity.progress.summary import EvaluationSummary, RunSummary


def result_lines(summary: RunSummary) -> Iterator[str]:
    """Yields the first, best and final evaluation, and the amount of training."""
    for title, done in (
        ("first", summary.first_evaluation),
        ("best", summary.best_evaluation),
        ("final", summary.final_evaluation),
    ):
        if done is not None:
            yield f"{title:6} evaluation  {_evaluation(done)}"
    yield (
        f"{summary.steps} train steps on {summary.experiences:,} experiences "
        f"({summary.tokens:,} tokens) in {summary.seconds['total']:.0f} s"
    )


def _evaluation(done: EvaluationSummary) -> str:
    figures = "  ".join(
        f"{name} {value.mean:.3f} ± {value.standard_error:.3f} (n={value.n})"
        for name, value in sorted(done.metrics.items())
    )
    return f"{done.stage} version {done.version} on {done.taskset}: {figures}"
