"""Many malformed requests to every call of every service, and what became of them."""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

import grpc
from google.protobuf.descriptor import MethodDescriptor

from tests.integration.hostile.messages import Fuzzer, Known
from trinity.api.v1 import (
    buffer_pb2,
    explorer_pb2,
    query_pb2,
    synchronizer_pb2,
    taskset_pb2,
    trainer_pb2,
)
from trinity.run.local.addresses import ServiceAddresses

Code: TypeAlias = grpc.StatusCode
DOCUMENTED = {
    Code.OK,
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.FAILED_PRECONDITION,
    Code.ABORTED,
    Code.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED,
}
WAITING = {"OpenStage", "LeaseAssignments", "GetBatch"}
"""Calls that may wait for something to happen; streams of answers do too."""
SERVICES = {
    "buffer": (buffer_pb2.DESCRIPTOR.services_by_name["BufferService"], 50),
    "synchronizer": (synchronizer_pb2.DESCRIPTOR.services_by_name["SynchronizerService"], 30),
    "explorer": (explorer_pb2.DESCRIPTOR.services_by_name["ExplorerService"], 10),
    "trainer": (trainer_pb2.DESCRIPTOR.services_by_name["TrainerService"], 10),
}
"""Each with its share of the requests."""
CALLS = {name: list(service.methods) for name, (service, _) in SERVICES.items()}
CALLS["buffer"] += taskset_pb2.DESCRIPTOR.services_by_name["TasksetService"].methods
CALLS["buffer"] += 3 * list(query_pb2.DESCRIPTOR.services_by_name["QueryService"].methods)
"""Questions have more fields than others: few of them get as far as the rows."""
IN_FLIGHT = 32
REFUSAL_SECONDS = 0.1
WAIT_SECONDS = 0.25
CALL_SECONDS = 60.0
NOT_FROM_THE_SERVICE = "Internal error from Core"
"""What the client's library says when an answer comes while it still sends: ask again."""
TRIES = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call ended, with what it said."""

    service: str
    method: MethodDescriptor
    code: Code
    details: str

    @property
    def is_right(self) -> bool:
        """Whether the contract says that a call may end so."""
        if self.code is Code.DEADLINE_EXCEEDED:  # ours: it waits, so it was taken for valid
            return self.method.name in WAITING or self.method.server_streaming
        return self.code in DOCUMENTED


@dataclass(frozen=True, slots=True)
class Attempt:
    """A call about to be made."""

    service: str
    method: MethodDescriptor
    requests: Sequence[bytes]


def attempts(seed: int, known: Known) -> Iterator[Attempt]:
    """Calls without end; what is known may change meanwhile."""
    random, fuzzer = Random(seed), Fuzzer(seed, known, sparse=True)
    names, weights = list(SERVICES), [share for _, share in SERVICES.values()]
    while True:
        [name] = random.choices(names, weights)
        method = random.choice(CALLS[name])
        kind = method.input_type
        many = method.client_streaming
        yield Attempt(name, method, fuzzer.stream(kind) if many else [fuzzer.request(kind)])


class Attack:
    """Calls of a seed on running services, counted by their ends.

    async with Attack(addresses, seed=1, known=known) as attack:
        await attack.go_on(1_000)
        assert not attack.wrong
    """

    def __init__(self, addresses: ServiceAddresses, *, seed: int, known: Known) -> None:
        at = {name: getattr(addresses, name) for name in SERVICES}
        self._channels = {name: grpc.aio.insecure_channel(one) for name, one in at.items()}
        self._known = dict(known)
        self._calls = attempts(seed, self._known)
        self.codes: Counter[tuple[str, Code]] = Counter()
        self.wrong: list[Outcome] = []

    async def __aenter__(self) -> "Attack":
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def go_on(self, number: int) -> None:
        """Make as many calls more, some at a time."""
        calls = itertools.islice(self._calls, number)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.create_task(self._work(calls))

    async def _work(self, calls: Iterator[Attempt]) -> None:
        for one in calls:
            for _ in range(TRIES):
                outcome = await self._make(one)
                if outcome.details != NOT_FROM_THE_SERVICE:
                    break
            self.codes[one.service, outcome.code] += 1
            if not outcome.is_right:
                self.wrong.append(outcome)

    async def _make(self, one: Attempt) -> Outcome:
        try:
            answer = await _call(self._channels[one.service], one.method, one.requests)
        except grpc.aio.AioRpcError as error:
            return Outcome(one.service, one.method, error.code(), str(error.details())[:200])
        if one.method.name == "BeginIncarnation":
            begun = buffer_pb2.BeginIncarnationResponse.FromString(answer)
            self._known["incarnation"] = (begun.incarnation,)
        return Outcome(one.service, one.method, Code.OK, "")


async def _call(
    channel: grpc.aio.Channel, method: MethodDescriptor, requests: Sequence[bytes]
) -> bytes:
    """Make a call; of a stream of answers the first one is enough."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    if method.server_streaming:
        if method.client_streaming:
            answers = channel.stream_stream(path)(_one_by_one(requests), timeout=WAIT_SECONDS)
        else:
            answers = channel.unary_stream(path)(requests[0], timeout=WAIT_SECONDS)
        first = await answers.read()
        answers.cancel()
        return b"" if first is grpc.aio.EOF else bytes(first)
    if method.client_streaming:
        return bytes(await channel.stream_unary(path)(_each(requests), timeout=CALL_SECONDS))
    seconds = WAIT_SECONDS if method.name in WAITING else CALL_SECONDS
    return bytes(await channel.unary_unary(path)(requests[0], timeout=seconds))


async def _each(requests: Sequence[bytes]) -> AsyncIterator[bytes]:
    for one in requests:
        yield one


async def _one_by_one(requests: Sequence[bytes]) -> AsyncIterator[bytes]:
    """Leaves time for a refusal: what is sent into a call that is ending hides its code."""
    for one in requests:
        yield one
        await asyncio.sleep(REFUSAL_SECONDS)
