"""Kills one thing after the other, by a seed, and waits until the experiment is back at work."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.points import CAMPAIGN, POINTS
from tests.chaos.recovery import (
    KILLED,
    KINDS,
    PASSING,
    SIGNALS,
    STRUCK,
    Kind,
    Recovery,
    variety_of,
)
from tests.chaos.strains import CLOCK, FULL, LONGEST_JUMP_SECONDS, set_clock
from tests.support.ranks import ranks_of
from tests.support.small_disk import fill
from trinity.run.local.run_file import read_running

LONGEST_PAUSE_SECONDS = 1.5
LONGEST_STOP_SECONDS = 8.0
PAIRS = 0.15
"""Share of kills that a second one follows before the first is overcome."""
REACH_SECONDS = 30.0
VARIETY_SECONDS = 240.0
"""Until an experiment of that kind has its turn, and comes to the point."""
BACK_SECONDS = 180.0
LOOK_SECONDS = 0.05
VISITED, RELAUNCHED = ("visited", "seeing", "queue"), "plain"
"""Varieties: where a launcher is not killed, as a client knows its address, and where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A process that was struck, and the time until work went on."""

    target: str
    """A process with a signal, or a point."""
    kind: Kind
    at: float
    """When it died, or went on after it was stopped."""
    experiment: str
    back_seconds: float | None = None
    """None when it was not back in time: a stall."""
    load_before: float
    load_after: float = 0.0


def targets(
    random_: random.Random,
    kills: int,
    points: Sequence[str] = (),
    varieties: Sequence[str] = (),
) -> list[str]:
    """Whom to kill, in which order: every process at least once, the rest as there is room.

    These `points` are among them; of those that one variety alone comes to, those of `varieties`.
    """
    reached = [one for one in (*CAMPAIGN, *STRUCK) if variety_of(one) in ("", *varieties)]
    deck = [*points, *(f"{kind} SIGKILL" for kind in KILLED)]
    while len(deck) < kills:
        random_.shuffle(reached)
        deck += reached
    chosen = deck[:kills]
    random_.shuffle(chosen)
    return chosen


class Nemesis:
    """Strikes while `experiment` names what is being worked on."""

    def __init__(self, arena: Arena, random_: random.Random) -> None:
        self._arena = arena
        self._random = random_
        self.experiment = ""
        self.variety = ""
        self.wanted_variety = ""
        self.is_over = False
        self.deaths: list[Death] = []
        self.not_reached: list[str] = []

    async def strike(self, wanted: Sequence[str]) -> None:
        """Kill all of them; now and then two before the first is overcome."""
        left = iter(wanted)
        for target in left:
            await asyncio.sleep(self._random.uniform(0.05, LONGEST_PAUSE_SECONDS))
            struck = [await self._kill(target)]
            if self._random.random() < PAIRS:
                await asyncio.sleep(self._random.uniform(0.0, 0.5))
                struck += [await self._kill(other) for other in _next(left)]
            await self._await_recovery([one for one in struck if one is not None])

    async def _kill(self, target: str) -> Death | None:
        self.wanted_variety = variety_of(target)
        if target in POINTS:
            return await self._kill_at(target)
        while self.wanted_variety not in ("", self.variety):  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        name, sent, *_ = target.split()
        kind: Kind = next(one for one in KINDS if one == name)
        if kind == "launcher" and sent != "SIGSTOP":
            return await self._relaunch(target, SIGNALS[sent])
        if sent in (CLOCK, FULL):
            return await self._strain(target, kind, sent)
        pid = await self._pid(kind)
        death = self._death(target, kind, time.time())
        with suppress(ProcessLookupError):  # it may have gone with what died just before
            os.kill(pid, SIGNALS[sent])
        return await self._let_go_on(death, pid) if _passes(death) else death

    async def _relaunch(self, target: str, sent: signal.Signals) -> Death:
        """Not during a visit."""
        self.wanted_variety = RELAUNCHED
        while self.variety in VISITED:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_SECONDS)
        death = self._death(target, "launcher", time.time())
        await self._arena.relaunch(sent)
        self.wanted_variety = ""
        return death

    async def _strain(self, target: str, kind: Kind, sent: str) -> Death:
        """For a while; its time counts from then on."""
        death, clocks = self._death(target, kind, time.time()), self._arena.folder.path
        ballast = None
        if sent == CLOCK:
            jump = self._random.uniform(-LONGEST_JUMP_SECONDS, LONGEST_JUMP_SECONDS)
            set_clock(clocks, kind, jump)
        else:
            ballast = await asyncio.to_thread(fill, self._arena.root)
        await asyncio.sleep(self._random.uniform(0.2, LONGEST_STOP_SECONDS))
        if ballast is None:
            set_clock(clocks, kind, 0.0)
        else:
            ballast.unlink()
        return replace(death, at=time.time())

    async def _let_go_on(self, death: Death, pid: int) -> Death:
        """After a while; its time counts from then on."""
        await asyncio.sleep(self._random.uniform(0.2, LONGEST_STOP_SECONDS))
        at = time.time()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        return replace(death, at=at)

    async def _kill_at(self, point: str) -> Death | None:
        """Let it kill itself; a point that is not come to is left."""
        folder = self._arena.folder
        known = len(list(folder.read(DEATHS)))
        folder.arm(point)
        deadline = time.time() + (VARIETY_SECONDS if self.wanted_variety else REACH_SECONDS)
        while len(lines := list(folder.read(DEATHS))) == known:
            if time.time() > deadline and folder.disarm(point):
                self.not_reached.append(point)
                return None
            await asyncio.sleep(LOOK_SECONDS)
        return self._death(point, POINTS[point].process, lines[-1]["at"])

    def _death(self, target: str, kind: Kind, at: float) -> Death:
        load = os.getloadavg()[0]
        return Death(target=target, kind=kind, at=at, experiment=self.experiment, load_before=load)

    async def _pid(self, kind: Kind) -> int:
        """Of the process that is there now, or of the next one."""
        while True:
            pid = self._pid_now(kind)
            if pid is not None and psutil.pid_exists(pid):
                return pid
            await asyncio.sleep(LOOK_SECONDS)

    def _pid_now(self, kind: Kind) -> int | None:
        if kind == "launcher":
            running = read_running(self._arena.root / "stack")
            return None if running is None else running.supervisor_pid
        return self._rank_pid() if kind == "rank" else self._arena.stack.pids[kind]

    def _rank_pid(self) -> int | None:
        with suppress(psutil.Error):
            if ranks := ranks_of(self._arena.stack.pids["trainer"]):
                return ranks[0].pid
        return None

    async def _await_recovery(self, struck: list[Death]) -> None:
        """Of deaths that overlap, the time of each counts from the last one."""
        last = max((one.at for one in struck), default=0.0)
        for one in struck:
            recovery = Recovery(self._arena, one.kind, one.at, last, is_same_process=_passes(one))
            back = await self._back(recovery)
            load = os.getloadavg()[0]
            self.deaths.append(replace(one, back_seconds=back, load_after=load))

    async def _back(self, recovery: Recovery) -> float | None:
        while recovery.seconds_so_far() < BACK_SECONDS:
            back_at = await asyncio.to_thread(recovery.back_at)
            if back_at is not None:
                return back_at - recovery.last_death
            await asyncio.sleep(LOOK_SECONDS)
        return None


def _next(left: Iterator[str]) -> list[str]:
    following = next(left, None)
    return [] if following is None else [following]


def _passes(death: Death) -> bool:
    return death.target.endswith(PASSING)
