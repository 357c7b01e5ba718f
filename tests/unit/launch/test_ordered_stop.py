"""Ctrl-C ends a run in order, is answered at once, and never cuts a stop short."""

import asyncio
import os
import signal

import pytest

from trinity.launch.run import GracefulShutdown, RunInterrupted


class Gone:
    """Whoever read it has gone, as `tee` has after Ctrl-C."""

    def print_line(self, text: str) -> None:
        raise BrokenPipeError(text)


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.news = asyncio.Event()

    def print_line(self, text: str) -> None:
        self.said.append(text)
        self.news.set()

    async def until_said(self, number: int) -> None:
        while len(self.said) < number:
            self.news.clear()
            await self.news.wait()


def press(number: signal.Signals = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


async def is_interrupted(stop: GracefulShutdown, number: signal.Signals) -> bool:
    """Whether the signal ends work that would go on for ever."""

    async def work() -> None:
        press(number)
        await asyncio.Event().wait()

    guarded = asyncio.ensure_future(stop.guard(work()))
    done, _ = await asyncio.wait((guarded,), timeout=5)
    guarded.cancel()
    await asyncio.gather(guarded, return_exceptions=True)
    return bool(done) and isinstance(guarded.exception(), RunInterrupted)


async def test_however_often_it_is_pressed_what_runs_ends_in_order() -> None:
    lines, ended = Lines(), False

    async def work() -> None:
        nonlocal ended
        try:
            press()
            await asyncio.Event().wait()
        finally:
            press()
            await lines.until_said(2)
            ended = True

    async with asyncio.timeout(30):
        with pytest.raises(RunInterrupted):
            await GracefulShutdown(lines).guard(work())
    assert ended
    assert lines.said[0] == "stopping in order"
    assert lines.said[1].startswith("already stopping")


async def test_pressed_while_a_finished_run_stops_it_keeps_its_results() -> None:
    lines = Lines()
    stop = GracefulShutdown(lines)

    async def work() -> str:
        stop.mark_stopping()
        press()
        await lines.until_said(1)
        return "results"

    async with asyncio.timeout(30):
        assert await stop.guard(work()) == "results"
    assert lines.said[0].startswith("already stopping")


async def test_pressed_when_nobody_reads_any_more_it_stops_all_the_same() -> None:
    assert await is_interrupted(GracefulShutdown(Gone()), signal.SIGINT)


async def test_a_terminal_that_is_closed_ends_a_run_in_order() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert await is_interrupted(GracefulShutdown(Lines()), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


async def test_what_nohup_started_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    async def work() -> str:
        press(signal.SIGHUP)
        await asyncio.sleep(0.05)
        return "results"

    try:
        assert await GracefulShutdown(Lines()).guard(work()) == "results"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
