"""Experiments under fire: one after the other for as long as the nemesis strikes, each checked."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.faults.arena import Arena, arena_in
from tests.faults.checks import Findings, findings
from tests.faults.nemesis import Death, Nemesis, targets
from tests.faults.points import POINTS

logger = logging.getLogger(__name__)

NUM_STEPS = 8
UNDER_FIRE_SECONDS = 600.0
"""An experiment may be struck again and again; one that hangs is a stall long before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a campaign came to."""

    deaths: list[Death]
    not_reached: list[str]
    """Points that were armed and not come to in time."""
    times_reached: dict[str, int]
    found: dict[str, Findings]
    """What the checks found, by experiment; all of them are in it."""
    num_repeated_steps: int
    """Steps that more than one life of a trainer trained."""

    @property
    def violations(self) -> list[str]:
        """All sentences."""
        return [
            f"{experiment}: {check}: {sentence}"
            for experiment, found in self.found.items()
            for check, sentences in found.items()
            for sentence in sentences
        ]

    @property
    def stalls(self) -> list[str]:
        """What the experiment did not get over in time."""
        return [one.target for one in self.deaths if one.back_seconds is None]


async def open_fire(root: Path, *, kills: int, seed: int, points: Sequence[str] = ()) -> Outcome:
    """A campaign: so many kills, at these points and else as the seed decides."""
    chance = random.Random(seed)
    async with arena_in(root) as arena:
        expected = {
            visited: await arena.undisturbed(num_steps=NUM_STEPS, visited=visited)
            for visited in (False, True)
        }
        nemesis = Nemesis(arena, chance)
        working = asyncio.create_task(_work(arena, nemesis, expected))
        striking = asyncio.create_task(nemesis.strike(targets(chance, kills, points)))
        try:
            await asyncio.wait((working, striking), return_when=asyncio.FIRST_COMPLETED)
            if working.done():  # only by an error
                await working
            await striking
            nemesis.is_over = True
            found, num_repeated = await working
        finally:
            for task in (striking, working):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        return Outcome(
            deaths=nemesis.deaths,
            not_reached=nemesis.not_reached,
            times_reached={name: arena.folder.times_reached(name) for name in POINTS},
            found=found,
            num_repeated_steps=num_repeated,
        )


async def _work(
    arena: Arena, nemesis: Nemesis, expected: Mapping[bool, str]
) -> tuple[dict[str, Findings], int]:
    """Experiments until the nemesis is done; the last one ends in peace.

    Every second one has a visitor: `expected` are the weights of those with and without one.
    """
    found: dict[str, Findings] = {}
    num_repeated = 0
    for number in count(1):
        nemesis.experiment = f"under-fire-{number}"
        visited = number % 2 == 1
        ended = await arena.run(
            nemesis.experiment,
            num_steps=NUM_STEPS,
            end_seconds=UNDER_FIRE_SECONDS,
            visited=visited,
        )
        snapshot = await asyncio.to_thread(arena.snapshot_when_up, ended, expected[visited])
        found[nemesis.experiment] = findings(snapshot)
        if found[nemesis.experiment]:
            logger.warning("%s: %s", nemesis.experiment, found[nemesis.experiment])
        reports = [one for one in snapshot.commits if one.what == "report"]
        num_repeated += len(reports) - len({one.number for one in reports})
        logger.info(
            "%d experiments, %d deaths, %d with findings",
            number,
            len(nemesis.deaths),
            sum(bool(one) for one in found.values()),
        )
        if nemesis.is_over:
            break
    return found, num_repeated
