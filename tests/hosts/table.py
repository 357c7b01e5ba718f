"""What a campaign came to, as a table of a document."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain

from tests.hosts.outage import Link, Outage

DETECTED_SECONDS = 10.0
HEALED_SECONDS = 2.0
WAYS = {"both": "both", "out": "→ only", "back": "← only"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """An experiment on a slow link."""

    kind: str
    place: str
    seconds: float
    findings: dict[str, list[str]] = field(default_factory=dict)


def is_good(outages: Sequence[Outage], slow: Sequence[Slow]) -> bool:
    """Whether all of them were noticed and overcome in time, and nothing was found."""
    in_time = all(
        (one.told_after or DETECTED_SECONDS + 1) <= DETECTED_SECONDS
        and (one.healed_after or HEALED_SECONDS + 1) <= HEALED_SECONDS
        for one in outages
    )
    found = chain((one.findings for one in outages), (one.findings for one in slow))
    return in_time and not any(found)


def table_of(outages: Sequence[Outage], slow: Sequence[Slow], undisturbed_seconds: float) -> str:
    """Markdown."""
    lines = [
        "| link | directions cut | for s | cuts | named by `trinity why` after s: median (worst) "
        "| in a log after s | at work again after s: median (worst) | lost, twice, other |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    kinds: dict[tuple[float, Link, str], list[Outage]] = {}
    for one in outages:
        kinds.setdefault((one.seconds, one.link, one.way), []).append(one)
    lines += map(_row, kinds.values())
    if slow:
        lines += [
            "",
            f"Undisturbed the same experiment takes {undisturbed_seconds:.0f} s.",
            "",
            "| slow | of the host of the | experiment s | lost, twice, other |",
            "|---|---|---:|---:|",
            *(
                f"| {one.kind} | {one.place} | {one.seconds:.0f} | {_count([one.findings])} |"
                for one in slow
            ),
        ]
    return "\n".join(lines)


def _row(same: Sequence[Outage]) -> str:
    one = same[0]
    cells = [
        " - ".join(one.link),
        WAYS[one.way],
        f"{one.seconds:.0f}",
        str(len(same)),
        _times(outage.told_after for outage in same),
        _times(outage.logged_after for outage in same),
        _times(outage.healed_after for outage in same),
        str(_count(outage.findings for outage in same)),
    ]
    return f"| {' | '.join(cells)} |"


def _times(values: Iterable[float | None]) -> str:
    given = list(values)
    known = [one for one in given if one is not None]
    if not known:
        return "never"
    never = f", {len(given) - len(known)} never" if len(known) < len(given) else ""
    return f"{statistics.median(known):.1f} ({max(known):.1f}{never})"


def _count(findings: Iterable[dict[str, list[str]]]) -> int:
    return sum(len(sentences) for found in findings for sentences in found.values())
