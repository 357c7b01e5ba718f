"""Ctrl-C ends a run in order, is answered at once, and never cuts a stop short."""

import asyncio
import os
import signal

import pytest

from trinity.launch.ordered_stop import Interrupted, OrderedStop


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.news = asyncio.Event()

    def say(self, text: str) -> None:
        self.said.append(text)
        self.news.set()

    async def until_said(self, number: int) -> None:
        while len(self.said) < number:
            self.news.clear()
            await self.news.wait()


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


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
        with pytest.raises(Interrupted):
            await OrderedStop(lines).guard(work())
    assert ended
    assert lines.said[0] == "stopping in order"
    assert lines.said[1].startswith("already stopping")


async def test_pressed_while_a_finished_run_stops_it_keeps_its_results() -> None:
    lines = Lines()
    stop = OrderedStop(lines)

    async def work() -> str:
        stop.begins()
        press()
        await lines.until_said(1)
        return "results"

    async with asyncio.timeout(30):
        assert await stop.guard(work()) == "results"
    assert lines.said[0].startswith("already stopping")
