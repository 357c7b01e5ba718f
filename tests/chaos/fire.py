"""Experiments under fire: one after the other for as long as the nemesis strikes, each checked."""

import asyncio
import logging
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, cycle
from pathlib import Path

from tests.chaos.arena import Arena, arena_in
from tests.chaos.checks import Findings
from tests.chaos.nemesis import Death, Nemesis, targets
from tests.chaos.points import POINTS
from tests.chaos.varieties import SHORT, VARIETIES, Play

logger = logging.getLogger(__name__)

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


async def open_fire(
    root: Path,
    *,
    kills: int,
    seed: int,
    points: Sequence[str] = (),
    varieties: Sequence[str] = SHORT,
) -> Outcome:
    """A campaign: so many kills, at these points and else as the seed decides."""
    chance = random.Random(seed)
    async with arena_in(root) as arena:
        expected = {variety: await _undisturbed(arena, variety) for variety in varieties}
        nemesis = Nemesis(arena, chance)
        working = asyncio.create_task(_work(arena, nemesis, expected))
        wanted = targets(chance, kills, points, varieties)
        striking = asyncio.create_task(nemesis.strike(wanted))
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


async def _undisturbed(arena: Arena, variety: str) -> str:
    """The weights that such an experiment ends with when nothing dies."""
    play = Play(arena=arena, name=f"undisturbed-{variety}", end_seconds=UNDER_FIRE_SECONDS)
    played = await VARIETIES[variety](play)
    assert played.found == {}, f"{variety}: {played.found}"
    return played.weights


async def _work(
    arena: Arena, nemesis: Nemesis, expected: Mapping[str, str]
) -> tuple[dict[str, Findings], int]:
    """Experiments until the nemesis is done; the last one ends in peace.

    The varieties take turns; one that the nemesis waits for is next.
    """
    found: dict[str, Findings] = {}
    num_repeated = 0
    turns = cycle(expected)
    for number in count(1):
        variety = nemesis.wanted_variety or next(turns)
        nemesis.experiment = f"under-fire-{number}"
        play = Play(
            arena=arena,
            name=nemesis.experiment,
            expected=expected[variety],
            end_seconds=UNDER_FIRE_SECONDS,
        )
        played = await VARIETIES[variety](play)
        found[nemesis.experiment] = played.found
        if played.found:
            logger.warning("%s, %s: %s", nemesis.experiment, variety, played.found)
        num_repeated += played.num_repeated_steps
        logger.info(
            "%d experiments, %d deaths, %d with findings",
            number,
            len(nemesis.deaths),
            sum(bool(one) for one in found.values()),
        )
        if nemesis.is_over:
            break
    return found, num_repeated
