"""Every link cut for a while, each cut a row of the ledger of campaigns.

python -m tests.chaos.hosts.campaign --seconds 30 [--docs FILE]
"""

import argparse
import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos import ledger
from tests.chaos.campaign import commit_now, trial
from tests.chaos.hosts.deployment import Deployment, deployed
from tests.chaos.hosts.network import Slowness, why_not
from tests.chaos.hosts.outage import LINKS, WAYS, Link, Outage, cut_for, wait_for_step
from tests.chaos.hosts.table import Slow, shortcomings, table_of
from tests.chaos.hosts.trial import Trials
from tests.chaos.nemesis import Death
from tests.chaos.table import write_between
from tests.chaos.varieties import Played

logger = logging.getLogger(__name__)

NUM_STEPS = 12
CUT_AT_STEP = 3
END_SECONDS = 600.0
SLOWNESS = {
    "100 ms more each way": Slowness(delay_seconds=0.1),
    "2 % of packets lost": Slowness(loss=0.02),
    "250 kB/s": Slowness(bytes_per_second=250e3),
}
PLACES: Link = ("explorer", "buffer")
"""Whose hosts are slow, one at a time."""


async def cut_all(
    deployment: Deployment, expected: str, seconds: float, ways: Sequence[str], rounds: int
) -> list[Outage]:
    """Each link, each way, in each round once; an experiment each."""
    trials = Trials(deployment=deployment, num_steps=NUM_STEPS)
    outages: list[Outage] = []
    seed = int(time.time())
    for number in range(rounds * len(LINKS) * len(ways)):
        link = LINKS[number // len(ways) % len(LINKS)]
        way = ways[number % len(ways)]

        async def cut(experiment_id: str, link: Link = link, way: str = way) -> None:
            await wait_for_step(deployment, experiment_id, CUT_AT_STEP)
            outages.append(await cut_for(deployment, experiment_id, link, way, seconds))

        name, load = f"cut-{seconds:.0f}-{number}", os.getloadavg()[0]
        async with asyncio.timeout(seconds + END_SECONDS):
            outages_found = dict(await trials.disturbed(name, cut, expected))
        outages[-1].findings = outages_found
        death = Death(
            target=f"{'-'.join(link)} CUT",
            kind="host",
            at=0.0,
            experiment=name,
            back_seconds=outages[-1].healed_after,
            load_before=load,
            load_after=os.getloadavg()[0],
        )
        played = Played(weights="", found=outages[-1].findings)
        ledger.append([trial(death, "hosts", played, seed=seed, commit=commit_now())])
        logger.info("%s", outages[-1])
    return outages


async def slow_all(deployment: Deployment, expected: str) -> list[Slow]:
    """An experiment for each kind of slowness of either host."""
    trials = Trials(deployment=deployment, num_steps=NUM_STEPS)
    slow: list[Slow] = []
    for number, (kind, slowness) in enumerate(SLOWNESS.items()):
        for place in PLACES:
            begun = asyncio.get_running_loop().time()
            with deployment.network.slowed(place, slowness):
                try:
                    async with asyncio.timeout(END_SECONDS):
                        name = f"slow-{number}-{place}"
                        found = dict(await trials.disturbed(name, _nothing, expected))
                except TimeoutError:
                    found = {"ends": [f"not within {END_SECONDS:.0f} s"]}
            took = asyncio.get_running_loop().time() - begun
            slow.append(Slow(kind=kind, place=place, seconds=took, findings=found))
            logger.info("%s", slow[-1])
    return slow


async def _nothing(_: str) -> None:
    return


async def _campaign(arguments: argparse.Namespace) -> tuple[list[Outage], list[Slow], float]:
    root = Path(tempfile.mkdtemp(prefix="trinity-hosts-"))
    logger.info("logs: %s", root)
    async with deployed(root / "hosts") as deployment:
        trials = Trials(deployment=deployment, num_steps=NUM_STEPS)
        begun = asyncio.get_running_loop().time()
        expected = await trials.undisturbed()
        took = asyncio.get_running_loop().time() - begun
        outages = await cut_all(
            deployment, expected, arguments.seconds, arguments.ways, arguments.rounds
        )
        if arguments.long_seconds:
            outages += await cut_all(deployment, expected, arguments.long_seconds, ["both"], 1)
        slow = await slow_all(deployment, expected) if arguments.slow else []
        return outages, slow, took


def main() -> int:
    """0 when all was noticed and overcome in time and nothing found, else 1 and what it was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each cut lasts")
    parser.add_argument("--long-seconds", type=float, default=0.0, help="once each, both ways")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--slow", action="store_true", help="slow links, too")
    parser.add_argument("--docs", type=Path, help="a document whose table is replaced")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(asctime)s %(message)s")
    logger.setLevel(logging.INFO)
    if reason := why_not():
        sys.stderr.write(f"{reason}\n")
        return 2
    outages, slow, took = asyncio.run(_campaign(arguments))
    table = table_of(outages, slow, took)
    sys.stdout.write(table + "\n")
    if arguments.docs:
        arguments.docs.write_text(write_between(arguments.docs.read_text(), table))
    said = shortcomings(outages, slow)
    sys.stderr.writelines(f"{one}\n" for one in said)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
