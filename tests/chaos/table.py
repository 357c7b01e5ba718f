"""The table of the ledger, and its place in a document.

It has all rows, so that it changes only with the ledger; `ledger.missing` asks which still count.
"""

import statistics
from collections.abc import Sequence

from tests.chaos.ledger import Trial
from tests.chaos.points import CAMPAIGN
from tests.chaos.recovery import ALONE, STRUCK
from tests.chaos.varieties import VARIETIES

BEGIN, END = "<!-- campaign: begin -->", "<!-- campaign: end -->"
LOST = ("told_is_stored", "nothing_is_lost", "whole_groups", "sink_has_all", "queue_is_whole")
QUIET_LOAD = 4.0
TWICE = ("stored_once", "one_attempt_a_run", "no_row_twice", "sink_has_none_twice")


def table_of(rows: Sequence[Trial]) -> str:
    """Markdown: what was killed how often, and what came of it."""
    return "\n".join(
        [
            _summary(rows),
            "",
            "| killed | kills | back at work: median s | p95 s | p95 over `alone` | lost | twice "
            "| other |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
            *(
                _line(name.replace(" ", ", "), _of(rows, name), _of(rows, f"{name} {ALONE}"))
                for name in STRUCK
            ),
            *(_line(f"`{name}`", _of(rows, name)) for name in CAMPAIGN),
            _line("**all**", rows),
            "",
            "| experiments of kind | kills | lost | twice | other |",
            "|---|---:|---:|---:|---:|",
            *(_variety_line(name, rows) for name in VARIETIES),
        ]
    )


def write_between(text: str, table: str) -> str:
    """Returns the text of a document with what stands between the markers replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


def _summary(rows: Sequence[Trial]) -> str:
    promised = [row for row in rows if row.ends_the_same is not None]
    same = sum(bool(row.ends_the_same) for row in promised)
    commits = len({row.commit for row in rows})
    return (
        f"{len(rows)} kills over {commits} commits since release 0.1. {len(promised)} of them were "
        f"in experiments whose weights are promised; {same} of these ended in the weights of the "
        f"undisturbed one. Seconds are of those at a load of {QUIET_LOAD:g} at most."
    )


def _of(rows: Sequence[Trial], target: str) -> list[Trial]:
    return [row for row in rows if row.target == target]


def _line(name: str, rows: Sequence[Trial], alone: Sequence[Trial] = ()) -> str:
    seconds = _seconds(rows)
    median = f"{statistics.median(seconds):.1f}" if seconds else ""
    p95 = f"{percentile(seconds, 0.95):.1f}" if seconds else ""
    return (
        f"| {name} | {len(rows)} | {median} | {p95} | {_ratio(rows, alone)} | {_findings(rows)} |"
    )


def _ratio(rows: Sequence[Trial], alone: Sequence[Trial]) -> str:
    """Holds kills against those of the same process where there is next to no work."""
    pooled, least = _seconds(rows), _seconds(alone)
    if not (pooled and least):
        return ""
    return f"{percentile(pooled, 0.95) / percentile(least, 0.95):.2f}"


def _seconds(rows: Sequence[Trial]) -> list[float]:
    """Returns the seconds of kills at a low load; on a busy machine they say little."""
    quiet = (row for row in rows if max(row.load_before, row.load_after) <= QUIET_LOAD)
    return [row.back_seconds for row in quiet if row.back_seconds is not None]


def _variety_line(name: str, rows: Sequence[Trial]) -> str:
    own = [row for row in rows if row.variety == name]
    return f"| {name} | {len(own)} | {_findings(own)} |"


def _findings(rows: Sequence[Trial]) -> str:
    """Sentences of the experiments, each experiment once; a stall is among the others."""
    experiments = {(row.seed, row.experiment): row.found for row in rows}
    found = [check for each in experiments.values() for check, said in each.items() for _ in said]
    lost = sum(check in LOST for check in found)
    twice = sum(check in TWICE for check in found)
    stalls = sum(row.back_seconds is None for row in rows)
    return f"{lost} | {twice} | {len(found) - lost - twice + stalls}"
