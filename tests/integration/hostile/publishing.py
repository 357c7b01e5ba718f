"""Messages to the broker as an explorer may send them, written by hand."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import experience_pb2 as pb
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.run.local.addresses import ServiceAddresses
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.subjects import runs_subject
from trinity.types import EID, Experience, Sequence, StageKey

PRODUCER = str(uuid.uuid4())
REPORT_SECONDS = 60.0
HEADERS = (
    b"NATS/1.0",
    b"NATS/1.0\r\n",
    b"NATS/1.0 404 No Messages\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 \xff\xff\xff\r\n\r\n",
    b"NATS/1.0\r\n\xff\xff\r\n: \r\n\r\n",
    b"garbage\r\n\r\n",
)


@dataclass(frozen=True, slots=True)
class Publisher:
    """A connection on which nothing is checked."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def publish(self, subject: bytes, body: bytes, headers: bytes = b"") -> None:
        """Send a message without waiting for the broker to take it."""
        length = len(headers) + len(body)
        sizes = b"%d %d" % (len(headers), length) if headers else b"%d" % length
        self.writer.write((b"HPUB " if headers else b"PUB ") + subject + b" " + sizes + b"\r\n")
        self.writer.write(headers + body + b"\r\n")
        await self.writer.drain()

    async def taken(self) -> list[bytes]:
        """Wait until the broker has read everything; answers what it refused."""
        self.writer.write(b"PING\r\n")
        refused = []
        while not (line := await self.reader.readline()).startswith(b"PONG"):
            assert line, "the broker has closed the connection"
            if line.startswith(b"PING"):
                self.writer.write(b"PONG\r\n")
            else:
                refused.append(line)
        return refused


@contextlib.asynccontextmanager
async def publisher(url: str) -> AsyncIterator[Publisher]:
    """Connect as the user of the address."""
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        await reader.readline()
        options = {"verbose": False, "headers": True, "user": at.username, "pass": at.password}
        writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        own = Publisher(reader, writer)
        assert await own.taken() == []
        yield own
    finally:
        writer.close()


def subject_of(key: StageKey) -> bytes:
    """Where results of a stage go."""
    return runs_subject(key.tenant, key.experiment_id, key.stage).encode()


def result(
    key: StageKey, one: buffer_pb2.Assignment, run: int, sequence: int, *, suffix: str = ""
) -> pb.RunResult:
    """A complete run of an assignment."""
    eid = EID(
        stage=key.stage,
        batch=one.explore_step,
        task=one.position,
        run=run,
        attempt=one.first_attempt,
        suffix=suffix,
    )
    ref = SampleRef(
        tenant=key.tenant,
        experiment_id=key.experiment_id,
        assignment_id=one.id,
        taskset=one.taskset,
        task_index=one.task_index,
    )
    body = Sequence(
        tokens=np.arange(4, dtype=np.int32),
        prompt_length=2,
        action_mask=np.ones(2, dtype=np.bool_),
        rollout_logprobs=np.zeros(2, dtype=np.float32),
    )
    sample = experience_to_proto(Experience(body=body, eid=eid, reward=1.0), ref)
    return pb.RunResult(
        tenant=key.tenant,
        experiment_id=key.experiment_id,
        stage=key.stage,
        assignment_id=one.id,
        run=run,
        attempt=one.first_attempt,
        state=pb.RunResult.STATE_COMPLETE,
        experiences=[sample],
        sequence=sequence,
    )


def packed(*results: pb.RunResult, producer: str = PRODUCER) -> bytes:
    """Results as one message."""
    return pb.RunResultBatch(producer=producer, results=results).SerializeToString()


async def fate(at: ServiceAddresses, sequence: int) -> buffer_pb2.CommitReport:
    """What the producer is told of a result, however much is in front of it."""
    request = buffer_pb2.WatchCommitsRequest(producer=PRODUCER, sequences=[sequence])
    async with open_channel(at.buffer) as channel:
        stream = BufferServiceStub(channel).WatchCommits(request, timeout=REPORT_SECONDS)
        async for message in stream:
            found = {report.sequence: report for report in message.reports}.get(sequence)
            if isinstance(found, buffer_pb2.CommitReport):
                stream.cancel()
                return found
    raise AssertionError("the stream of reports has ended")
