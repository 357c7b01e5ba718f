"""A link that is cut during an experiment: when somebody says so, and when it is overcome."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.chaos.hosts.deployment import Deployment
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.run.diagnosis.diagnose import diagnose
from trinity.run.diagnosis.gather import gather
from trinity.runtime.rpc.channel import open_channel
from trinity.runtime.rpc.limits import CALL_SECONDS

Link = tuple[str, str]
LINKS: tuple[Link, ...] = (
    ("explorer", "buffer"),
    ("explorer", "nats"),
    ("explorer", "synchronizer"),
    ("trainer", "buffer"),
    ("trainer", "synchronizer"),
    ("buffer", "nats"),
    ("buffer", "postgres"),
    ("buffer", "synchronizer"),
    ("synchronizer", "postgres"),
)
"""Who opens connections to whom."""
ONLY_TOLD: Link = ("buffer", "synchronizer")
"""Carries nothing but signs of life: the experiment goes on, so `trinity why` names nothing."""
TITLES = {"nats": "broker", "postgres": "database"}
"""What people read for these parts, beside their own names."""
COMPLAINTS = (" WARNING ", " ERROR ")
LOOK_SECONDS = 0.1
ASK_SECONDS = 0.5
FRESH_SECONDS = 1.0
HEALED_SECONDS = 60.0

STEPS = "SELECT coalesce(max(step), 0) FROM step_report WHERE experiment_id = %s"
STORED = """
    SELECT extract(epoch FROM least(
        (SELECT min(received_at) FROM run_attempt
         WHERE experiment_id = %(id)s AND received_at > to_timestamp(%(since)s)),
        (SELECT min(reported_at) FROM step_report
         WHERE experiment_id = %(id)s AND reported_at > to_timestamp(%(since)s))))::float8
"""


@dataclass(slots=True, kw_only=True)
class Outage:
    """What came of one cut; times in seconds from the cut, or from the link's return."""

    link: Link
    way: str
    seconds: float
    told_after: float | None = None
    """Until `trinity why` named an end of the link."""
    told: str = ""
    logged_after: float | None = None
    """Until a log of one of the two complained."""
    logged: str = ""
    healed_after: float | None = None
    """Until something was done that needs the link."""
    findings: dict[str, list[str]] = field(default_factory=dict)

    @property
    def detected_after(self) -> float | None:
        """Until either said so."""
        said = [one for one in (self.told_after, self.logged_after) if one is not None]
        return min(said, default=None)


WAYS = ("both", "out", "back")
"""Both directions; from who connects to who is connected to; the other way."""


def directions(link: Link, way: str) -> tuple[Link, ...]:
    """Which of the two are cut."""
    one, other = link
    ways = {"both": (link, (other, one)), "out": (link,), "back": ((other, one),)}
    return ways[way]


async def cut_for(
    deployment: Deployment, experiment_id: str, link: Link, way: str, seconds: float
) -> Outage:
    """Cut a link of a running experiment for so long and watch what is said and done."""
    outage = Outage(link=link, way=way, seconds=seconds)
    with deployment.network.cut(*directions(link, way)):
        watching = asyncio.create_task(_watch(deployment, outage))
        await asyncio.sleep(seconds)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    await _await_healing(deployment, experiment_id, outage)
    return outage


async def cut_until_told(
    deployment: Deployment, experiment_id: str, link: Link, way: str, at_most_seconds: float
) -> Outage:
    """Cut a link until both `trinity why` and a log say so."""
    outage = Outage(link=link, way=way, seconds=at_most_seconds)
    with suppress(TimeoutError), deployment.network.cut(*directions(link, way)):
        async with asyncio.timeout(at_most_seconds):
            await _watch(deployment, outage)
    await _await_healing(deployment, experiment_id, outage)
    return outage


async def _await_healing(deployment: Deployment, experiment_id: str, outage: Outage) -> None:
    returned_at = time.time()
    healed_at = await _healed(deployment, experiment_id, outage.link, returned_at)
    outage.healed_after = healed_at - returned_at if healed_at else None


async def wait_for_step(deployment: Deployment, experiment_id: str, step: int) -> None:
    """Return when so many steps are trained."""
    while True:
        if (await _value(deployment, STEPS, (experiment_id,)) or 0.0) >= step:
            return
        await asyncio.sleep(LOOK_SECONDS)


async def _watch(deployment: Deployment, outage: Outage) -> None:
    begun = time.monotonic()
    files = [deployment.log_file(end) for end in outage.link]
    logs = {file: file.stat().st_size for file in files}
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_watch_logs(outage, logs, begun))
        tasks.create_task(_watch_why(deployment, outage, begun))


async def _watch_logs(outage: Outage, logs: dict[Path, int], begun: float) -> None:
    while outage.logged_after is None:
        await asyncio.sleep(LOOK_SECONDS)
        for file, size in logs.items():
            said = file.read_bytes()[size:].decode(errors="replace").splitlines()
            complaints = [line for line in said if any(word in line for word in COMPLAINTS)]
            if complaints:
                outage.logged_after = time.monotonic() - begun
                outage.logged = f"{file.stem}: {complaints[0]}"
                return


async def _watch_why(deployment: Deployment, outage: Outage, begun: float) -> None:
    names = {name for end in outage.link for name in (end, TITLES.get(end, end))}
    while outage.told_after is None:
        verdict = diagnose(await gather(deployment.running(), deployment.root))
        said = verdict.text if not verdict.is_healthy else " ".join(verdict.notes)
        if any(name in said.lower() for name in names):
            outage.told_after = time.monotonic() - begun
            outage.told = said
            return
        await asyncio.sleep(ASK_SECONDS)


async def _healed(
    deployment: Deployment, experiment_id: str, link: Link, since: float
) -> float | None:
    while time.time() < since + HEALED_SECONDS:
        if link == ONLY_TOLD:
            if await _is_heard_of(deployment, link[0]):
                return time.time()
        else:
            values = {"id": experiment_id, "since": since}
            at = await _value(deployment, STORED, values)
            if at is not None:
                return at
        await asyncio.sleep(LOOK_SECONDS)
    return None


async def _is_heard_of(deployment: Deployment, part: str) -> bool:
    addresses = deployment.addresses
    async with open_channel(addresses.synchronizer, addresses.security) as channel:
        status: pb.GetStatusResponse = await SynchronizerServiceStub(channel).GetStatus(
            pb.GetStatusRequest(), timeout=CALL_SECONDS
        )
    role = pb.Role.Value(f"ROLE_{part.upper()}")
    silent = [one.silent_seconds for one in status.members if one.role == role]
    return min(silent, default=FRESH_SECONDS) < FRESH_SECONDS


async def _value(
    deployment: Deployment, query: str, values: tuple[str, ...] | dict[str, object]
) -> float | None:
    dsn = deployment.postgres.dsn("buffer")
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        row = await (await connection.execute(query.encode(), values)).fetchone()
    return float(row[0]) if row and row[0] is not None else None
