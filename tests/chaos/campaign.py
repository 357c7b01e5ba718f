"""A long campaign: python -m tests.chaos.campaign --kills 500 --seed 1 [--docs FILE]"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.fire import Outcome, open_fire
from tests.chaos.table import table_of, write_between
from tests.chaos.varieties import VARIETIES


def main() -> int:
    """0 when nothing was found, 1 otherwise; then the folder stays to be looked at."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many processes die")
    parser.add_argument("--seed", type=int, default=1, help="decides who dies when")
    parser.add_argument("--docs", type=Path, help="a document whose table is replaced")
    parser.add_argument("--folder", type=Path, help="where the stack lives; else a temporary one")
    parser.add_argument(
        "--varieties",
        nargs="+",
        choices=tuple(VARIETIES),
        default=tuple(VARIETIES),
        help="the kinds of experiment that take turns; else all of them",
    )
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="trinity-faults-"))
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("tests.chaos.fire").setLevel(logging.INFO)
    begun = time.monotonic()
    outcome = asyncio.run(
        open_fire(folder, kills=arguments.kills, seed=arguments.seed, varieties=arguments.varieties)
    )
    table = table_of(outcome, kills=arguments.kills, seed=arguments.seed)
    _say(f"{table}\n\n{time.monotonic() - begun:.0f} s; the stack's folder: {folder}")
    if arguments.docs:
        write_between(arguments.docs, table)
    return _verdict(outcome)


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
