"""What a campaign came to, as a table of a document."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from tests.chaos.hosts.outage import ONLY_TOLD, Link, Outage

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


def shortcomings(outages: Sequence[Outage], slow: Sequence[Slow]) -> list[str]:
    """What was not noticed or not overcome in time, and what was found, a sentence each."""
    said = [
        f"{' - '.join(one.link)} ({WAYS[one.way]}, {one.seconds:.0f} s): {what}"
        for one in outages
        for what in chain(_delays(one), _found(one.findings))
    ]
    said += [
        f"{one.kind} of the {one.place}'s host: {what}"
        for one in slow
        for what in _found(one.findings)
    ]
    return said


def _delays(outage: Outage) -> Iterator[str]:
    if outage.seconds <= DETECTED_SECONDS:
        pass  # over before it must be noticed
    elif outage.detected_after is None:
        yield "never noticed"
    elif outage.detected_after > DETECTED_SECONDS:
        yield f"noticed after {outage.detected_after:.1f} s"
    elif outage.told_after is None and outage.link != ONLY_TOLD:
        yield "never named by `trinity why`"
    if outage.healed_after is None:
        yield "never at work again"
    elif outage.healed_after > HEALED_SECONDS:
        yield f"at work again after {outage.healed_after:.1f} s"


def _found(findings: dict[str, list[str]]) -> Iterator[str]:
    for check, sentences in findings.items():
        yield from (f"{check}: {sentence}" for sentence in sentences)


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
