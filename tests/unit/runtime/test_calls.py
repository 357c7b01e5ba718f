"""Calls between two processes: each gets its own answer, whatever becomes of the others."""

import asyncio
from typing import Any

import pytest

from trinity.errors import Unavailable
from trinity.runtime.process.calls import CallServer, Message, OnDelta, OpenCalls


class Refused(Exception):
    """An error that both sides know."""


class Pair:
    """Both sides of a connection, on one loop; calls of `wait` end when they are given up."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.given_up: list[int] = []
        self.calls = OpenCalls(self._to_server, Refused)
        self.server = CallServer(self._value, self._to_client)

    def _to_server(self, message: Any) -> None:
        self.sent.append(dict(message))
        self.server.accept(dict(message))

    def _to_client(self, message: Any) -> None:
        self.calls.receive(dict(message))

    async def _value(self, call: Message, send: OnDelta) -> object:
        match call["function"]:
            case "wait":
                try:
                    await asyncio.Event().wait()
                finally:
                    self.given_up.append(call["call"])
            case "count":
                for number in range(call["limit"]):
                    send({"number": number})
            case "refuse":
                raise {"Refused": Refused, "Unavailable": Unavailable, "KeyError": KeyError}.get(
                    call["kind"], StopAsyncIteration
                )("no")
        return call["function"]

    async def reply(self, function: str, **values: object) -> object:
        return await asyncio.wrap_future(self.calls.call(function, None, **values))


async def test_a_call_that_is_given_up_ends_on_the_other_side_and_alone() -> None:
    pair = Pair()
    waiting = asyncio.create_task(pair.reply("wait"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert pair.sent[1:] == [{"call": 0, "is_given_up": True}]
    assert await pair.reply("later") == "later"
    assert pair.given_up == [0]


async def test_the_answer_to_a_call_that_was_given_up_is_dropped() -> None:
    calls = OpenCalls(lambda _: None)
    first, second = calls.call("first"), calls.call("second")
    first.cancel()
    calls.receive({"delta": 0, "number": 1})
    calls.receive({"reply": 0, "value": 1})
    calls.receive({"reply": 1, "value": 2})
    assert second.result(0) == 2


async def test_parts_come_before_the_reply_and_in_order() -> None:
    pair, heard = Pair(), []
    reply = pair.calls.call("count", lambda part: heard.append(part["number"]), limit=3)
    assert await asyncio.wrap_future(reply) == "count"
    assert heard == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "raised"),
    [("Refused", Refused), ("Unavailable", Unavailable), ("KeyError", KeyError)],
)
async def test_an_error_that_both_sides_know_keeps_its_class(
    kind: str, raised: type[Exception]
) -> None:
    with pytest.raises(raised, match="no"):
        await Pair().reply("refuse", kind=kind)


async def test_what_is_open_fails_when_the_other_side_is_gone() -> None:
    pair = Pair()
    waiting = asyncio.create_task(pair.reply("wait"))
    await asyncio.sleep(0)
    pair.calls.fail(Refused("gone"))
    with pytest.raises(Refused, match="gone"):
        await waiting
    await asyncio.sleep(0)
    await pair.server.close()
    assert pair.given_up == [0]
