"""The table and the summary of what the runs gave."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.algorithms import judge
from benchmarks.algorithms.judge import HARD_LAG, TrialVerdict, safe_lag, verdicts
from benchmarks.algorithms.outcome import NUM_ROWS, TrialRun
from benchmarks.algorithms.picture import draw
from benchmarks.algorithms.results import Results
from benchmarks.algorithms.trials import NO_AIM, Trial, all_trials
from benchmarks.table import PerformanceClaim, print_claims

Verdicts = Mapping[tuple[str, int], TrialVerdict]
TABLE_LAGS = (0, HARD_LAG)


def report(results: Results, summary: Path, picture: Path) -> None:
    """Print the table, write the summary and the picture."""
    runs = list(results.runs.values())
    if not runs:
        return
    found = verdicts(runs)
    trials = [
        trial for trial in all_trials().values() if any(trial.name == key[0] for key in found)
    ]
    losses = _losses(runs)
    _print_table(trials, found)
    claims = _claims(trials, found, losses)
    print_claims(claims)
    record = {
        "rule": " ".join((judge.__doc__ or "").split("\n\n")[1].split()),
        "rows_of_a_step": NUM_ROWS,
        "steps": runs[0].num_steps,
        "start": runs[0].start,
        "trials": {trial.name: _of_trial(trial, found, runs) for trial in trials},
        "losses_on_held_out_data": losses,
        "claims": [claim.as_json() for claim in claims],
    }
    summary.write_text(json.dumps(record, indent=2) + "\n")
    draw([trial.name for trial in trials], found, runs, picture)


def _print_table(trials: Sequence[Trial], found: Verdicts) -> None:
    table = Table("trial", *(f"lag {lag}" for lag in TABLE_LAGS), "learns", "safe lag")
    for trial in trials:
        of_trial = [found.get((trial.name, lag)) for lag in TABLE_LAGS]
        words = [
            "" if verdict is None else "yes" if verdict.learns else "NO" for verdict in of_trial
        ]
        figures = [
            "" if verdict is None else f"{verdict.end:.3f} ± {verdict.noise:.3f}"
            for verdict in of_trial
        ]
        table.add_row(trial.name, *figures, "  ".join(words), safe_lag(trial.name, found))
    Console(width=110).print(table)
    for name, reason in NO_AIM.items():
        print(f"{name} has no aim: {reason}")


def _of_trial(trial: Trial, found: Verdicts, runs: Sequence[TrialRun]) -> Mapping[str, object]:
    return {
        "algorithm": dict(trial.algorithm),
        "trainer": dict(trial.trainer),
        "corrects_for_lag": trial.is_corrected,
        "safe_lag": safe_lag(trial.name, found),
        "lags": {
            lag: {
                "ends": [run.end for run in runs if (run.trial, run.lag) == (name, lag)],
                "end": verdict.end,
                "gain": verdict.gain,
                "noise": verdict.noise,
                "learns": verdict.learns,
            }
            for (name, lag), verdict in sorted(found.items())
            if name == trial.name
        },
    }


def _losses(runs: Sequence[TrialRun]) -> dict[str, list[dict[int, float]]]:
    """Returns the losses on data by trial, one course a seed."""
    losses: dict[str, list[dict[int, float]]] = {}
    for run in runs:
        if run.losses:
            losses.setdefault(run.trial, []).append(run.losses)
    return losses


def _claims(
    trials: Sequence[Trial], found: Verdicts, losses: Mapping[str, Sequence[Mapping[int, float]]]
) -> list[PerformanceClaim]:
    aimed = [trial for trial in trials if trial.name not in NO_AIM]
    fresh = [found[t.name, 0] for t in aimed if (t.name, 0) in found]
    old = [found[t.name, HARD_LAG] for t in aimed if t.is_corrected and (t.name, HARD_LAG) in found]
    courses = [course for of_trial in losses.values() for course in of_trial]
    num_falling = sum(course[max(course)] < course[0] for course in courses)
    claims = [
        _all("that learn on policy", [verdict.learns for verdict in fresh]),
        _all(
            f"with a correction that learn at lag {HARD_LAG}", [verdict.learns for verdict in old]
        ),
        PerformanceClaim("runs on data whose held-out loss falls", num_falling, len(courses), ">="),
    ]
    return [claim for claim in claims if claim.limit]


def _all(name: str, held: Sequence[bool]) -> PerformanceClaim:
    return PerformanceClaim(f"trials {name}", sum(held), len(held), ">=")
