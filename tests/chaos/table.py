"""The table of a campaign, and its place in a document."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.fire import Outcome
from tests.chaos.nemesis import Death
from tests.chaos.points import POINTS
from tests.chaos.recovery import KINDS

BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
LOST = ("told_is_stored", "nothing_is_lost", "whole_groups")
TWICE = ("stored_once", "one_attempt_a_run", "no_row_twice")


def table_of(outcome: Outcome, *, kills: int, seed: int) -> str:
    """Markdown: what was killed how often, and what came of it."""
    lines = [
        f"`python -m tests.chaos.campaign --kills {kills} --seed {seed}`: "
        f"{len(outcome.deaths)} deaths during {len(outcome.found)} experiments of one stack; "
        f"{outcome.num_repeated_steps} train steps were trained again by a later life; "
        f"{_same_weights(outcome)} of the experiments ended in the weights of the undisturbed one.",
        "",
        "| killed | deaths | reached | back at work: median s | p95 s | lost | twice | other |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in KINDS:
        lines += _row(f"{kind}, at random", kind, outcome, reached="")
    for point in POINTS:
        lines += _row(f"`{point}`", point, outcome, reached=str(outcome.times_reached[point]))
    own = [one.experiment for one in outcome.deaths]
    lines.append(_line("**all**", outcome.deaths, outcome, "", list(outcome.found) or own))
    return "\n".join(lines)


def write_between(document: Path, text: str) -> None:
    """Replace what stands between the markers."""
    before, _, rest = document.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def _row(name: str, target: str, outcome: Outcome, reached: str) -> list[str]:
    deaths = [one for one in outcome.deaths if one.target == target]
    if not deaths and not reached:
        return []
    experiments = sorted({one.experiment for one in deaths})
    return [_line(name, deaths, outcome, reached, experiments)]


def _line(
    name: str, deaths: Sequence[Death], outcome: Outcome, reached: str, experiments: Sequence[str]
) -> str:
    seconds = [one.back_seconds for one in deaths if one.back_seconds is not None]
    median = f"{statistics.median(seconds):.1f}" if seconds else ""
    p95 = f"{percentile(seconds, 0.95):.1f}" if seconds else ""
    found = [
        (check, sentence)
        for experiment in experiments
        for check, sentences in outcome.found.get(experiment, {}).items()
        for sentence in sentences
    ]
    lost = sum(check in LOST for check, _ in found)
    twice = sum(check in TWICE for check, _ in found)
    other = len(found) - lost - twice
    return f"| {name} | {len(deaths)} | {reached} | {median} | {p95} | {lost} | {twice} | {other} |"


def _same_weights(outcome: Outcome) -> str:
    same = sum("ends_in_the_same_weights" not in found for found in outcome.found.values())
    return f"{same} of {len(outcome.found)}"
