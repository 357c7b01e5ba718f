"""Experiments under fire: one after the other for as long as the nemesis strikes, each checked."""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from errno import ENOSPC
from itertools import count, cycle
from pathlib import Path

import psycopg

from tests.chaos.arena import Arena, arena_in
from tests.chaos.checks import Findings
from tests.chaos.nemesis import Death, Nemesis
from tests.chaos.recovery import STRAINS, TWO_HOSTS
from tests.chaos.varieties import SHORT, VARIETIES, Play, Played
from tests.support.small_disk import small_disk

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.1
UNDER_FIRE_SECONDS = 600.0
"""An experiment may be struck again and again; one that hangs is a stall long before."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a campaign came to."""

    deaths: list[Death] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    """Points that were armed and not come to in time."""
    found: dict[str, Findings] = field(default_factory=dict)
    """What the checks found, by experiment; all of them are in it."""

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


Settled = Callable[[Death, str, Played], None]
"""Hears of a death that is overcome, the variety, and what came of its experiment."""


async def open_fire(
    root: Path,
    *,
    wanted: Sequence[str],
    seed: int,
    varieties: Sequence[str] = SHORT,
    settled: Settled = lambda _death, _variety, _played: None,
) -> Outcome:
    """A campaign: these targets are struck one after the other, while experiments take turns."""
    async with AsyncExitStack() as held:
        notes = None
        if not set(STRAINS).isdisjoint(wanted):
            notes = root / "faults"
            held.enter_context(small_disk(root := root / "disk"))
        two_hosts = [*varieties] == [TWO_HOSTS]
        arena = await held.enter_async_context(arena_in(root, notes=notes, two_hosts=two_hosts))
        expected = {variety: await _undisturbed(arena, variety) for variety in varieties}
        nemesis = Nemesis(arena, random.Random(seed))
        campaign = _Campaign(arena, nemesis, expected, settled)
        working = asyncio.create_task(campaign.work())
        striking = asyncio.create_task(nemesis.strike(wanted))
        try:
            await asyncio.wait((working, striking), return_when=asyncio.FIRST_COMPLETED)
            if working.done():  # only by an error
                await working
            await striking
            nemesis.is_over = True
            await working
        finally:
            for task in (striking, working):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
        return Outcome(deaths=nemesis.deaths, not_reached=nemesis.not_reached, found=campaign.found)


async def _undisturbed(arena: Arena, variety: str) -> str:
    """The weights that such an experiment ends with when nothing dies."""
    play = Play(arena=arena, name=f"undisturbed-{variety}", end_seconds=UNDER_FIRE_SECONDS)
    played = await VARIETIES[variety](play)
    assert played.found == {}, f"{variety}: {played.found}"
    return played.weights


async def _played(variety: str, play: Play) -> Played:
    """Begins again where a full disk or a dead database stopped what is the campaign's own."""
    while True:
        try:
            return await VARIETIES[variety](play)
        except (OSError, psycopg.OperationalError) as error:
            if isinstance(error, OSError) and error.errno != ENOSPC:
                raise
            await asyncio.sleep(RETRY_SECONDS)


class _Campaign:
    """Experiments until the nemesis is done; the last one ends in peace.

    The varieties take turns; one that the nemesis waits for is next.
    """

    def __init__(
        self, arena: Arena, nemesis: Nemesis, expected: Mapping[str, str], settled: Settled
    ) -> None:
        self._arena = arena
        self._nemesis = nemesis
        self._expected = expected
        self._settled = settled
        self._played: dict[str, tuple[str, Played]] = {}
        self._num_settled = 0
        self.found: dict[str, Findings] = {}

    async def work(self) -> None:
        turns = cycle(self._expected)
        for number in count(1):
            name = self._nemesis.experiment = f"under-fire-{number}"
            variety = self._nemesis.wanted_variety
            variety = variety if variety in self._expected else next(turns)
            self._nemesis.variety = variety
            expected = self._expected[variety]
            play = Play(
                arena=self._arena, name=name, expected=expected, end_seconds=UNDER_FIRE_SECONDS
            )
            played = await _played(variety, play)
            self._played[name] = (variety, played)
            self.found[name] = played.found
            if played.found:
                logger.warning("%s, %s: %s", name, variety, played.found)
            self._settle()
            logger.info("%d experiments, %d deaths", number, len(self._nemesis.deaths))
            if self._nemesis.is_over:
                break

    def _settle(self) -> None:
        deaths = self._nemesis.deaths
        while self._num_settled < len(deaths):
            death = deaths[self._num_settled]
            if death.experiment not in self._played:
                return
            self._settled(death, *self._played[death.experiment])
            self._num_settled += 1
