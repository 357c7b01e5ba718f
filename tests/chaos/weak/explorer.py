"""What the explorer would do without its protections."""

import asyncio
import copy
import dataclasses
import secrets
from typing import Any

from tests.chaos.patching import Function
from trinity.api.v1.experience_pb2 import RunResult
from trinity.types import experience_id

HEARD_SECONDS = 0.3
"""Until clients have received what they were told."""


def send_twins(original: Function) -> Function:
    """Send every result once more, as another attempt with other samples."""

    def add(self: Any, message: RunResult) -> "asyncio.Future[Any]":
        report: asyncio.Future[Any] = original(self, message)
        original(self, _twin(message))
        return report

    return add


def _twin(message: RunResult) -> RunResult:
    twin = RunResult()
    twin.CopyFrom(message)
    twin.attempt += 1
    for one in twin.experiences:
        eid = one.eid
        eid.attempt = twin.attempt
        one.id = experience_id(twin.assignment_id, eid.run, eid.attempt, eid.step, eid.suffix or "")
    return twin


def load_unseen(_: Function) -> Function:
    """Load weights without a look at their files."""

    async def load(self: Any, weights: Any, transfers: Any = None) -> None:
        del transfers
        await self._engine.load_weights(weights.path)
        self._content = weights.content

    return load


def take_any(_: Function) -> Function:
    """Run with whatever weights are loaded."""
    return lambda _self, loaded: loaded is not None


def draw_anew(_: Function) -> Function:
    """Draw a run's seeds from nowhere."""
    return lambda *_: secrets.randbits(63)


def go_on(_: Function) -> Function:
    """Replace weights while tokens are drawn, or count those that have arrived by chance."""

    async def do_nothing(self: Any) -> None:
        del self

    return do_nothing


def leave(_: Function) -> Function:
    """Leave something undone: caches of older weights, a difference, or a look at its tensors."""
    return lambda *_: None


def tell_first(original: Function) -> Function:
    """Tell an answer before it is sent to be stored."""

    def fill(self: Any, slot: Any, turn: Any) -> None:
        self._end(slot, turn)
        asyncio.get_running_loop().call_later(HEARD_SECONDS, original, self, slot, turn)

    return fill


def close_twice(original: Function) -> Function:
    """Make the samples of a session once more."""

    def close(turns: Any) -> Any:
        closed = original(turns)
        again = [copy.deepcopy(sample) for sample in closed.samples]
        return dataclasses.replace(closed, samples=closed.samples + again)

    return close
