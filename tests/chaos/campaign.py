"""A long campaign, which adds its kills to the ledger and may be ended at any time.

python -m tests.chaos.campaign --kills 500      # what the ledger lacks comes first
python -m tests.chaos.campaign --table docs/guarantees.md [--check]
python -m tests.chaos.campaign --again 412      # the kill of the ledger's line 412, ten times
"""

import argparse
import asyncio
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.fire import Outcome, open_fire
from tests.chaos.nemesis import VISITED, Death, targets
from tests.chaos.recovery import STRAINS, TWO_HOSTS, variety_of
from tests.chaos.sources import REPOSITORY, digest_of
from tests.chaos.strains import possible
from tests.chaos.table import table_of, write_between
from tests.chaos.varieties import UNORDERED, VARIETIES, Played

AGAIN = 10


def main() -> int:
    """0 when nothing was found, 1 otherwise; then the folder stays to be looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many kills are added")
    parser.add_argument("--seed", type=int, help="decides the order; else one that is new")
    parser.add_argument("--table", type=Path, help="a document whose table is written")
    parser.add_argument("--check", action="store_true", help="compare the table, write nothing")
    parser.add_argument("--targets", nargs="+", help="strike these, in place of what is missing")
    parser.add_argument("--again", type=int, help="a line of the ledger whose kill is repeated")
    parser.add_argument("--folder", type=Path, help="where the stack lives; else a temporary one")
    parser.add_argument("--varieties", nargs="+", choices=tuple(VARIETIES), default=())
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("tests.chaos.fire").setLevel(logging.INFO)
    if arguments.table:
        return _write_table(arguments.table, is_check=arguments.check)
    return _campaign(arguments)


def _campaign(arguments: argparse.Namespace) -> int:
    rows = ledger.read()
    seed = arguments.seed or max((row.seed for row in rows), default=0) + 1
    varieties = arguments.varieties or _fewest_first(rows)
    wanted = _wanted(rows, arguments.kills, random.Random(seed), varieties)
    if all(map(variety_of, wanted)):
        varieties = list(dict.fromkeys(map(variety_of, wanted)))
    if arguments.targets:
        wanted = [
            one
            for one in arguments.targets
            for _ in range(-(-arguments.kills // len(arguments.targets)))
        ]
    if arguments.again:
        row = rows[arguments.again - 1]
        wanted, varieties, seed = [row.target] * AGAIN, [row.variety], row.seed
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="trinity-faults-"))
    commit = commit_now()

    def settled(death: Death, variety: str, played: Played) -> None:
        ledger.append([trial(death, variety, played, seed=seed, commit=commit)])

    begun = time.monotonic()
    outcome = asyncio.run(
        open_fire(folder, wanted=wanted, seed=seed, varieties=varieties, settled=settled)
    )
    _say(f"{len(outcome.deaths)} kills in {time.monotonic() - begun:.0f} s; stack: {folder}")
    _say(_lack(ledger.read()))
    return _verdict(outcome)


def trial(death: Death, variety: str, played: Played, *, seed: int, commit: str) -> ledger.Trial:
    """The row of a death, and of the experiment that it struck."""
    return ledger.Trial(
        commit=commit,
        seed=seed,
        variety=variety,
        experiment=death.experiment,
        target=death.target,
        sources=digest_of(death.target),
        load_before=round(death.load_before, 1),
        load_after=round(death.load_after, 1),
        back_seconds=None if death.back_seconds is None else round(death.back_seconds, 2),
        found=played.found,
        ends_the_same=None
        if variety in UNORDERED
        else "ends_in_the_same_weights" not in played.found,
    )


def _wanted(
    rows: Sequence[ledger.Trial], kills: int, chance: random.Random, varieties: Sequence[str]
) -> list[str]:
    """Returns targets: those that the ledger lacks, then any; first what one variety comes to.

    To wait for the turn of a variety takes longer than a kill. Left out are strains that the
    machine cannot have, and what other varieties come to.
    """
    impossible = {*STRAINS}.difference(possible())
    if impossible:
        _say(f"root and `pip install libfaketime` are needed for {', '.join(sorted(impossible))}")
    if {*varieties} <= {*VISITED}:
        impossible |= {"launcher SIGKILL", "launcher SIGTERM"}
    own = {"", *varieties}
    lacks = ledger.missing(ledger.counted(rows), ())
    deck = [name for name, number in lacks.items() for _ in range(number) if name != "any"]
    while True:
        deck = [one for one in deck if one not in impossible and variety_of(one) in own]
        if len(deck) >= kills:
            chance.shuffle(deck)
            return sorted(deck, key=variety_of, reverse=True)[:kills]
        deck += targets(chance, kills - len(deck), varieties=varieties)


def _fewest_first(rows: Sequence[ledger.Trial]) -> list[str]:
    counted = [row.variety for row in ledger.counted(rows)]
    return sorted({*VARIETIES} - {TWO_HOSTS}, key=counted.count)


def commit_now() -> str:
    asked = ["git", "-C", str(REPOSITORY), "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _write_table(document: Path, *, is_check: bool) -> int:
    rows = ledger.read()
    text = document.read_text()
    written = write_between(text, table_of(rows))
    if is_check:
        if written == text:
            return 0
        _say(
            f"{document} is not what the ledger says: python -m {__spec__.name} --table {document}"
        )
        return 1
    document.write_text(written)
    _say(_lack(rows))
    return 0


def _lack(rows: Sequence[ledger.Trial]) -> str:
    lacks = ledger.missing(ledger.counted(rows), VARIETIES)
    listed = ", ".join(f"{name} {number}" for name, number in lacks.items())
    return f"missing: {listed}" if lacks else "nothing is missing"


def _verdict(outcome: Outcome) -> int:
    for sentence in outcome.violations:
        _say(sentence)
    for target in outcome.stalls:
        _say(f"not back at work in time after the death of {target}")
    if outcome.not_reached:
        _say(f"armed and not come to in time: {', '.join(sorted(outcome.not_reached))}")
    return 1 if outcome.violations or outcome.stalls else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
