"""Calls users' operators, advantage and priority functions; runs as a separate process.

    python -m trinity.operators.worker 2147483648

The argument is the limit of its data memory in bytes. A request has the function's kind, name and
arguments, and a part with the samples for one call. Without it the function is only loaded, and the
answer states its requirements. During a call the process may ask for whole samples, which the
caller writes as its next line. A priority function gets candidates, and the answer has their
priorities.
"""

import base64
import contextlib
import dataclasses
import sys
import threading
from functools import partial

from trinity.algorithm.advantage.json_codec import Message
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.evaluation import compute_priorities
from trinity.api.v1 import experience_pb2
from trinity.data.codec import experience_from_proto
from trinity.errors import UserError
from trinity.operators.kinds import PRIORITY, READ, USER_FUNCTION_KINDS
from trinity.operators.rollouts import Rollouts
from trinity.runtime.process.channel import RequestChannel
from trinity.types import Experience, JsonObject
from trinity.user_code.adapted_part import AdaptedPart
from trinity.user_code.worker_process import serve_requests

READ_AT_ONCE = 32
"""Neighbouring samples that are read together: most functions read one after the other."""


class RecordedSamples:
    """The whole samples of one call, asked for when they are first read, and by any thread."""

    def __init__(self, channel: RequestChannel, size: int) -> None:
        self._channel = channel
        self._size = size
        self._known: dict[int, Experience] = {}
        self._lock = threading.Lock()
        self.is_over = False

    def read(self, place: int) -> Experience:
        """Returns a sample.

        Raises: UserError once the call is over.
        """
        with self._lock:
            if place not in self._known:
                self._ask(place)
            return self._known[place]

    def _ask(self, place: int) -> None:
        if self.is_over:
            raise UserError("it reads samples after it has returned: read them before")
        first = place - place % READ_AT_ONCE
        places = range(first, min(first + READ_AT_ONCE, self._size))
        self._channel.write({READ: list(places)})
        bodies = next(self._channel.requests())["bodies"]
        for number, body in zip(places, bodies, strict=True):
            message = experience_pb2.Experience.FromString(base64.b64decode(body))
            self._known[number] = experience_from_proto(message)

    def close(self) -> None:
        """Ends reading: later messages on the channel are requests."""
        with self._lock:
            self.is_over = True


def _answer(channel: RequestChannel, request: Message) -> JsonObject:
    if request["kind"] == PRIORITY:
        return _priorities(request)
    return _needs(request) if request["part"] is None else _compute(channel, request)


def _priorities(request: Message) -> JsonObject:
    candidates = [Candidate(**candidate) for candidate in request["candidates"]]
    function = PRIORITIES.get(request["name"])
    return {"priorities": list(compute_priorities(function, request["arguments"], candidates))}


def _needs(request: Message) -> JsonObject:
    function = USER_FUNCTION_KINDS[request["kind"]].registry.get(request["name"])
    if isinstance(function, AdaptedPart):
        with contextlib.suppress(ImportError):  # its first look at a mask would take a call's time
            import torch  # noqa: F401
    return dataclasses.asdict(needs_of(function, request["arguments"]))


def _compute(channel: RequestChannel, request: Message) -> JsonObject:
    kind = USER_FUNCTION_KINDS[request["kind"]]
    given = kind.input_from_json(request["part"])
    recorded = RecordedSamples(channel, len(given.rewards))
    if isinstance(given, Rollouts) and request["can_read"]:
        # A function, and no method: users copy experiences deeply, and a lock cannot be copied.
        given = dataclasses.replace(given, experience=lambda place: recorded.read(place))
    try:
        return kind.result_to_json(kind.call(request["name"], given, request["arguments"]))
    finally:
        recorded.close()


def main() -> int:
    """Serves requests until there are no more."""
    channel = RequestChannel()
    return serve_requests(partial(_answer, channel), int(sys.argv[1]), channel)


if __name__ == "__main__":
    sys.exit(main())
