"""The ledger of campaigns: a row for each kill, kept over commits, and what is still to be tried.

Rows begin with the first release. One counts as long as the files that it was a trial of are
unchanged; the rest stays as history.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.chaos.points import CAMPAIGN
from tests.chaos.recovery import STRUCK
from tests.chaos.sources import REPOSITORY, digest_of

LEDGER = REPOSITORY / "benchmarks" / "results" / "faults.jsonl"
TIMES = 10
"""How often each point, each process with each signal, and each variety is tried at least."""
KILLS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One kill and what came of it."""

    commit: str
    seed: int
    variety: str
    experiment: str
    target: str
    """A point, or a process with its signal."""
    sources: str
    """Digest of the files that it was a trial of."""
    load_before: float
    load_after: float
    back_seconds: float | None
    """Seconds until work went on; None if it did not in time."""
    found: Mapping[str, Sequence[str]]
    """Sentences of the checks about the experiment, by check."""
    ends_the_same: bool | None
    """True if it ended in the calm experiment's weights; None where that is not promised."""


def append(trials: Iterable[Trial], ledger: Path = LEDGER) -> None:
    """Adds rows at the end."""
    with ledger.open("a") as file:
        file.writelines(json.dumps(asdict(trial)) + "\n" for trial in trials)


def read(ledger: Path = LEDGER) -> list[Trial]:
    """Returns all rows, whether they still count or not."""
    if not ledger.exists():
        return []
    return [Trial(**json.loads(line)) for line in ledger.read_text().splitlines()]


def counted(trials: Iterable[Trial]) -> list[Trial]:
    """Returns the rows whose target exists and whose files are unchanged."""
    known = {*CAMPAIGN, *STRUCK}
    return [one for one in trials if one.target in known and one.sources == digest_of(one.target)]


def missing(trials: Sequence[Trial], varieties: Iterable[str]) -> dict[str, int]:
    """Returns how many trials each target and variety still lacks, and `any` of the whole."""
    targets = Counter(one.target for one in trials)
    kinds = Counter(one.variety for one in trials)
    lacks = {
        **{target: TIMES - targets[target] for target in (*CAMPAIGN, *STRUCK)},
        **{variety: TIMES - kinds[variety] for variety in varieties},
        "any": KILLS - len(trials),
    }
    return {name: number for name, number in lacks.items() if number > 0}
