"""Ctrl-C ends a run in order, is answered at once, and never cuts a stop short."""

import asyncio
import os
import signal

import pytest

from trinity.run.launch.run import GracefulShutdown, RunInterrupted


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


@pytest.mark.parametrize("is_impatient", [False, True])
async def test_the_step_in_hand_is_saved_unless_it_is_pressed_again(*, is_impatient: bool) -> None:
    lines, saved = Lines(), False
    stop = GracefulShutdown(lines)

    async def save() -> None:
        nonlocal saved
        if is_impatient:
            press()
            await asyncio.Event().wait()
        saved = True

    async def work() -> None:
        try:
            press()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await stop.unless_pressed_again(save())
            press()
            await lines.until_said(2 + is_impatient)
            raise

    async with asyncio.timeout(30):
        with pytest.raises(RunInterrupted):
            await stop.guard(work())
    assert saved is not is_impatient
    skipped = ["stopping at once: the step in hand is not saved"] if is_impatient else []
    assert lines.said[:-1] == ["stopping in order", *skipped]
    assert lines.said[-1].startswith("already stopping")


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
