"""Hundreds of thousands of malformed requests to a running system, and what they did to it.

python -m tests.integration.hostile.fuzz --requests 300000

Of ten, six go to the services over gRPC, three to a served model over HTTP, and one is a message
on the broker's stream.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil

from tests.integration.explorer.served import Victim, victim
from tests.integration.explorer.served_process import SERVED_KEY
from tests.integration.hostile.arena import Arena, arena_in
from tests.integration.hostile.attack import Attack, Code, Outcome
from tests.integration.hostile.http_attack import HttpAttack
from tests.integration.hostile.http_requests import HttpFuzzer
from tests.integration.hostile.messages import Fuzzer
from tests.integration.hostile.publishing import (
    HEADERS,
    Publisher,
    fate,
    packed,
    publisher,
    result,
    subject_of,
)
from tests.integration.hostile.victim import STAGE, known_values, leased
from tests.integration.hostile.vitals import MEBIBYTE, SERVICES, Speed, Vitals
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1 import experience_pb2 as pb
from trinity.types import StageKey

LOOKS = ("warm", "half", "most", "after")
"""When memory is looked at: after each quarter of the requests."""
BATCH = pb.DESCRIPTOR.message_types_by_name["RunResultBatch"]
MAX_MESSAGE_BYTES = 900_000
PAUSE_MESSAGES = 500
"""After as many the broker is asked whether it has read them."""
NUM_FILES = 1_024
MAX_P95_SECONDS = 1.0
PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What an attack over gRPC did."""

    seconds: float
    codes: Counter[tuple[str, Code]]
    wrong: list[Outcome]
    vitals: dict[str, dict[str, Vitals]]
    """Of each service `before`, and at each of the looks."""

    @property
    def num_requests(self) -> int:
        return self.codes.total()


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFindings:
    """What an attack over HTTP did."""

    seconds: float
    statuses: Counter[int]
    wrong: list[str]
    mebibytes: list[float]
    """Of the served model's process, at each of the looks."""
    valid: Speed
    """Of right requests meanwhile."""


async def attack(arena: Arena, *, num_requests: int, seed: int) -> Findings:
    """Make the gRPC requests of a seed."""
    known = await known_values(arena.at, experiment_plan(arena.root, name=f"victim-{seed}"))
    vitals = {"before": arena.vitals}
    begun = time.monotonic()
    async with Attack(arena.at, seed=seed, known=known) as attack:
        for place, look in enumerate(LOOKS):
            done = num_requests * place // len(LOOKS)
            await attack.go_on(num_requests * (place + 1) // len(LOOKS) - done)
            vitals[look] = arena.vitals
    seconds = time.monotonic() - begun
    return Findings(seconds=seconds, codes=attack.codes, wrong=attack.wrong, vitals=vitals)


async def attack_http(served: Victim, *, num_requests: int, seed: int) -> HttpFindings:
    """Make the HTTP requests of a seed to a served model."""
    attack = HttpAttack(served.port, HttpFuzzer(seed, prefix="", key=SERVED_KEY))
    process, mebibytes = psutil.Process(served.process.pid), []
    valid: list[float] = []
    begun = time.monotonic()
    async with valid_questions(served, valid):
        for _ in LOOKS:
            await attack.go_on(num_requests // len(LOOKS))
            mebibytes.append(process.memory_info().rss / MEBIBYTE)
    return HttpFindings(
        seconds=time.monotonic() - begun,
        statuses=attack.statuses,
        wrong=attack.wrong,
        mebibytes=mebibytes,
        valid=Speed(valid),
    )


@contextlib.asynccontextmanager
async def valid_questions(served: Victim, seconds: list[float]) -> AsyncIterator[None]:
    """Asks the model again and again until the block ends; a wrong answer fails the block."""

    async def repeat() -> None:
        while True:
            begun = time.monotonic()
            await asyncio.to_thread(served.check_alive)
            seconds.append(time.monotonic() - begun)
            await asyncio.sleep(PAUSE_SECONDS)

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(repeat())
        yield
        task.cancel()


async def attack_stream(arena: Arena, *, num_messages: int, seed: int) -> None:
    """Publish the messages of a seed, then a right one, which the buffer must store."""
    plan = experiment_plan(arena.root, name=f"stream-{seed}")
    key = StageKey(tenant=plan.tenant, experiment_id=str(uuid.uuid4()), stage=STAGE)
    named, own = await leased(arena.at, plan, key.experiment_id)
    known = dict(await known_values(arena.at, plan))
    known |= {"experiment_id": (key.experiment_id,), "assignment_id": (named.id,)}
    async with publisher(arena.explorer_nats_url) as to:
        await _publish_malformed(to, subject_of(key), Fuzzer(seed, known), num_messages)
        await to.publish(subject_of(key), packed(result(key, own, 1, num_messages)))
        assert await to.taken() == []
    last = await fate(arena.at, num_messages)
    assert last.state == buffer_pb2.CommitReport.STATE_COMMITTED, str(last)


async def _publish_malformed(to: Publisher, subject: bytes, fuzzer: Fuzzer, number: int) -> None:
    random = Random(number)
    for place in range(number):
        if random.randrange(8) == 0:
            body, headers = random.randbytes(50), random.choice((b"", *HEADERS))
        else:
            body, headers = fuzzer.request(BATCH)[:MAX_MESSAGE_BYTES], b""
        await to.publish(subject, body, headers)
        await asyncio.sleep(0)  # the valid calls are made in this loop, too
        if place % PAUSE_MESSAGES == 0:
            await to.taken()


def report(findings: Findings) -> str:
    """The findings as text."""
    lines = [f"{findings.num_requests} requests over gRPC in {findings.seconds:.0f} s"]
    for name in SERVICES:
        own = {code.name: n for (one, code), n in findings.codes.items() if one == name}
        told = ", ".join(f"{code} {n}" for code, n in sorted(own.items()))
        lines.append(f"{name}: {told}")
        for when, vitals in findings.vitals.items():
            now = vitals[name]
            lines.append(
                f"  {when}: {now.mebibytes:.0f} MiB, {now.num_files} files, "
                f"{now.num_log_lines} lines of log"
            )
    lines.append(f"{len(findings.wrong)} wrong answers")
    lines += [f"  {one.method.name}: {one.code.name} {one.details}" for one in findings.wrong[:20]]
    return "\n".join(lines)


def report_http(findings: HttpFindings) -> str:
    """The findings over HTTP as text."""
    told = ", ".join(f"{status} {n}" for status, n in sorted(findings.statuses.items()))
    memory = ", ".join(f"{size:.0f}" for size in findings.mebibytes)
    return "\n".join(
        [
            f"{findings.statuses.total()} requests over HTTP in {findings.seconds:.0f} s: {told}",
            f"  {memory} MiB after each quarter",
            f"  {findings.valid}",
            f"{len(findings.wrong)} wrong answers",
            *(f"  {wrong}" for wrong in findings.wrong[:20]),
        ]
    )


async def _attack_anew(num_requests: int, seed: int) -> bool:
    shares = {"grpc": num_requests * 6 // 10, "http": num_requests * 3 // 10}
    num_messages = num_requests - sum(shares.values())
    with tempfile.TemporaryDirectory(prefix="trinity-hostile-") as root:
        async with arena_in(Path(root)) as arena:
            async with arena.unharmed("stream") as beside_stream:
                await attack_stream(arena, num_messages=num_messages, seed=seed)
            sys.stdout.write(f"{num_messages} messages on the stream\n{beside_stream.speed}\n")
            async with arena.unharmed("requests") as valid:
                findings = await attack(arena, num_requests=shares["grpc"], seed=seed)
            sys.stdout.write(f"{report(findings)}\n{valid.speed}\n")
        with victim(Path(root) / "served.log", str(NUM_FILES)) as served:
            http = await attack_http(served, num_requests=shares["http"], seed=seed)
        sys.stdout.write(f"{report_http(http)}\n")
    speeds = (beside_stream.speed, valid.speed, http.valid)
    is_quick = all(speed.p95 < MAX_P95_SECONDS for speed in speeds)
    return is_quick and not findings.wrong and not http.wrong


def main() -> int:
    """Attack a stack of its own and say what came of it; 1 for wrong answers or slow ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    return int(not asyncio.run(_attack_anew(arguments.requests, arguments.seed)))


if __name__ == "__main__":
    sys.exit(main())
