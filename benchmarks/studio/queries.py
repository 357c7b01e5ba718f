"""Measures what Studio's page Experiences waits for, over a million stored experiences.

python -m benchmarks.studio.queries [--rows 1000000] [--calls 20] [--json FILE]

A buffer of its own, on real Postgres, gets one explore step through its broker. SQL then multiplies
an assignment and an experience of it within the real tables, with their indexes: groups of eight,
64 of them a step. The newest 20,000 have contents of their own, the others share one. Through the
broker come a conversation of 50 turns, eight times, and a sample of 32,768 tokens.

Each filter is asked as the page asks it (`list_experiences`: 51 newest, with contents). Times are
those of a caller; beside them stand the processor seconds of the buffer and of Postgres for one
call, which another load on the machine changes less.
"""

import argparse
import asyncio
import functools
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.own_buffer import own_buffer
from benchmarks.processor_time import cpu_seconds
from benchmarks.table import PerformanceClaim, print_claims
from services.buffer.store.schema import assignment, experience, payload
from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.made import Made
from tests.integration.buffer.plans import rollout_plan
from trinity.api.v1 import buffer_pb2
from trinity.api.v1.buffer_pb2_grpc import BufferServiceStub
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.api.v1.synchronizer_pb2_grpc import SynchronizerServiceStub
from trinity.codec import stage_key_to_proto
from trinity.local.addresses import ServiceAddresses
from trinity.rpc.channel import open_channel
from trinity.studio.connection import OpenRun
from trinity.studio.experiences import (
    PAGE_ROWS,
    conversation_of,
    count_experiences,
    group_of,
    list_experiences,
    whole_experience,
)
from trinity.studio.text_search import LOOK_AT, TextSearch
from trinity.studio.tokens import colors_of, token_strip

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/studio_queries.json"
LIMIT_SECONDS = 0.5
GROUP, GROUPS_A_STEP = 8, 64
FIRST_STEP = 100
OWN_CONTENTS = 20_000
NUM_TURNS = 50
LONG_TOKENS = 32_768
STREAM_BATCH = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCalls:
    """Times of calls of one kind."""

    name: str
    num_rows: int
    """That the last call gave."""
    p50_seconds: float
    p95_seconds: float
    cpu_seconds: float
    """Of the buffer and of Postgres, a call."""


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--json", type=Path, help=f"for the results, such as {RESULTS}")
    arguments = parser.parse_args()
    measured, seconds = asyncio.run(measure(arguments.rows, arguments.calls))
    claims = [
        PerformanceClaim(f"{found.name}: p95, s", found.p95_seconds, LIMIT_SECONDS, "<=")
        for found in measured
    ]
    table = Table("what", "rows", "p50, s", "p95, s", "processor, s")
    for found in measured:
        table.add_row(
            found.name,
            f"{found.num_rows:,}",
            *(f"{value:.3f}" for value in (found.p50_seconds, found.p95_seconds)),
            f"{found.cpu_seconds:.3f}",
        )
    Console().print(f"{arguments.rows:,} experiences, stored in {seconds:.0f} s")
    Console().print(table)
    print_claims(claims)
    if arguments.json is not None:
        told = {
            "rows": arguments.rows,
            "calls": arguments.calls,
            "measured": [asdict(found) for found in measured],
            "claims": [claim.as_json() for claim in claims],
        }
        arguments.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


async def measure(num_rows: int, num_calls: int) -> tuple[list[MeasuredCalls], float]:
    """Stores the experiences and asks for them; returns the figures, and how long storing took."""
    with tempfile.TemporaryDirectory(prefix="studio-queries-") as folder:
        root = Path(folder)
        async with own_buffer(root) as process, talk_to(process) as buffer:
            await _first_step(buffer, root)
            begun = time.monotonic()
            await asyncio.to_thread(multiply, process.dsn, buffer.key.experiment_id, num_rows)
            seconds = time.monotonic() - begun
            async with open_channel(process.address) as channel:
                opened = _opened(buffer, process.address, channel)
                return await _measure_all(opened, buffer, num_rows, num_calls), seconds


async def _first_step(buffer: Buffer, root: Path) -> None:
    """Three groups: short samples, conversations, and long samples."""
    await buffer.open(rollout_plan(root))
    await buffer.begin()
    await buffer.record(0)
    short, turns, long = (await buffer.lease()).assignments
    conversation = [Made() for _ in range(NUM_TURNS)]
    await buffer.settle(
        *(buffer.complete(short, run, Made()) for run in range(2)),
        *(buffer.complete(turns, run, *conversation) for run in range(2)),
        *(buffer.complete(long, run, Made(num_tokens=LONG_TOKENS)) for run in range(2)),
    )


def multiply(dsn: str, experiment_id: str, num_rows: int) -> None:
    """Fills the tables with copies of one group and one experience, each with an own identity."""
    num_groups = num_rows // GROUP
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET search_path TO buffer")
        connection.execute("SET synchronous_commit TO off")
        (segment_id,) = connection.execute(
            "SELECT max(segment_id) FROM experience WHERE experiment_id = %s", [experiment_id]
        ).fetchone() or (0,)
        connection.execute(_groups_sql(), {"groups": num_groups, "experiment": experiment_id})
        connection.execute(_samples_sql(), {"experiment": experiment_id})
        newest = {"experiment": experiment_id, "newest": OWN_CONTENTS}
        connection.execute(_contents_sql(segment_id), newest)
        connection.execute("ANALYZE")


def _groups_sql() -> str:
    own = {
        "assignment_id": "gen_random_uuid()",
        "explore_step": f"{FIRST_STEP} + g / {GROUPS_A_STEP}",
        "position": f"g %% {GROUPS_A_STEP}",
        "task_index": "g %% 4096",
        "repeat_times": f"{GROUP}",
    }
    names = [column.name for column in assignment.c if column.computed is None]
    values = ", ".join(own.get(name, f"a.{name}") for name in names)
    return (
        f"INSERT INTO assignment ({', '.join(names)}) SELECT {values} "  # own names
        "FROM (SELECT * FROM assignment WHERE experiment_id = %(experiment)s AND position = 0 "
        "AND kind = 'train' ORDER BY explore_step LIMIT 1) a, "
        "generate_series(0, %(groups)s - 1) g"
    )


def _samples_sql() -> str:
    own = {
        "experience_id": "gen_random_uuid()",
        "assignment_id": "a.assignment_id",
        "explore_step": "a.explore_step",
        "position": "a.position",
        "run": "r",
        "reward": "abs(hashint8(a.explore_step * 512 + a.position * 8 + r) %% 1001) / 1000.0",
        "version_min": "a.explore_step",
        "version_max": "a.explore_step",
        "state": "CASE WHEN a.position %% 16 = 15 THEN 'filtered' ELSE 'batched' END",
        "finish_reason": "CASE WHEN a.position %% 32 = 7 THEN 'length' ELSE e.finish_reason END",
    }
    names = [column.name for column in experience.c if column.name != "ready_number"]
    values = ", ".join(own.get(name, f"e.{name}") for name in names)
    return (
        f"INSERT INTO experience ({', '.join(names)}) SELECT {values} "  # own names
        "FROM (SELECT * FROM experience WHERE experiment_id = %(experiment)s AND position = 0 "
        f"LIMIT 1) e, assignment a, generate_series(0, {GROUP} - 1) r "
        f"WHERE a.experiment_id = %(experiment)s AND a.explore_step >= {FIRST_STEP}"
    )


def _contents_sql(segment_id: int) -> str:
    names = [column.name for column in payload.c]
    values = ", ".join("n.payload_id" if name == "payload_id" else f"p.{name}" for name in names)
    return (
        "WITH newest AS (SELECT experience_id FROM experience "  # own names
        "WHERE experiment_id = %(experiment)s ORDER BY explore_step DESC, position DESC "
        "LIMIT %(newest)s), n AS (UPDATE experience SET payload_id = experience.experience_id "
        "FROM newest WHERE experience.experience_id = newest.experience_id "
        "RETURNING experience.experience_id AS payload_id), "
        "p AS (SELECT payload.* FROM payload JOIN experience USING (segment_id, payload_id) "
        f"WHERE experience.experiment_id = %(experiment)s AND position = 0 LIMIT 1) "
        f"INSERT INTO payload_{segment_id} ({', '.join(names)}) SELECT {values} FROM n, p"
    )


def _opened(buffer: Buffer, address: str, channel: object) -> OpenRun:
    addresses = ServiceAddresses(
        synchronizer="",
        buffer=address,
        trainer="",
        explorer="",
        nats_url="",
        postgres_dsn="",
        security_dir="",
    )
    return OpenRun(
        addresses=addresses,
        buffer=BufferServiceStub(channel),
        queries=QueryServiceStub(channel),
        synchronizer=SynchronizerServiceStub(channel),
        tenant=buffer.key.tenant,
        label="",
        experiment_id=buffer.key.experiment_id,
        is_live=True,
    )


async def _measure_all(
    opened: OpenRun, buffer: Buffer, num_rows: int, num_calls: int
) -> list[MeasuredCalls]:
    key = stage_key_to_proto(buffer.key)
    last = FIRST_STEP + num_rows // GROUP // GROUPS_A_STEP - 1
    middle = (FIRST_STEP + last) // 2
    filters: dict[str, Callable[[int], Sequence[str]]] = {
        "no filter": lambda _: (),
        "an explore step": lambda call: (f"explore_step={middle + call}",),
        "a task": lambda call: (f"task=train:{call * 97 % 4096}",),
        "a taskset": lambda _: ("taskset=train",),
        "a state": lambda _: ("state=filtered",),
        "a range of rewards": lambda call: (f"reward={0.9 - call / 100:.2f}..",),
        "a rare reward": lambda call: (f"reward={call / 1000:.3f}",),
        "weights of an age": lambda call: (f"version={middle - call}..{middle + call}",),
        "how it ended": lambda _: ("finish=length",),
        "state and reward": lambda _: ("state=filtered", "reward=0.95.."),
    }
    found = [
        await _timed(name, num_calls, functools.partial(_asked, opened, key, words))
        for name, words in filters.items()
    ]
    found.append(
        await _timed(
            f"text over the newest {LOOK_AT:,}",
            num_calls,
            lambda _: _newest_with_text(opened, key, ("text=nowhere",)),
        )
    )
    found.append(
        await _timed(
            "how many have a range of rewards",
            num_calls,
            lambda call: _count(opened, key, (f"reward={0.9 - call / 100:.2f}..",)),
        )
    )
    page = await list_experiences(opened, key, ["explore_step=1"], page_rows=1_000)
    turn = next(row for row in page.rows if row.position == 1)
    long = next(row for row in page.rows if row.position == 2)
    found.append(
        await _timed(
            f"a conversation of {NUM_TURNS} turns",
            num_calls,
            lambda _: _conversation(opened, key, turn.id),
        )
    )
    found.append(
        await _timed(
            f"the strip of a sample of {LONG_TOKENS:,} tokens",
            num_calls,
            lambda _: _strip(opened, key, long.id),
        )
    )
    return found


async def _asked(
    opened: OpenRun, key: buffer_pb2.StageKey, words: Callable[[int], Sequence[str]], call: int
) -> int:
    return len((await list_experiences(opened, key, words(call))).rows)


async def _newest_with_text(
    opened: OpenRun, key: buffer_pb2.StageKey, words: tuple[str, ...]
) -> int:
    """Looks through the newest experiences, which the text is not in."""
    search = TextSearch(conditions=words)
    await search.go_on(opened, key, wanted=PAGE_ROWS + 1)
    assert search.num_examined >= LOOK_AT or search.is_done, "some were not looked at"
    return len(search.rows)


async def _count(opened: OpenRun, key: buffer_pb2.StageKey, words: Sequence[str]) -> int:
    return (await count_experiences(opened, key, words)).number


async def _conversation(opened: OpenRun, key: buffer_pb2.StageKey, sample: str) -> int:
    whole = await whole_experience(opened, key, sample)
    group = await group_of(opened, key, whole.row)
    turns = conversation_of(group, whole.row)
    assert len(turns) == NUM_TURNS, "a turn is missing"
    return len(turns)


async def _strip(opened: OpenRun, key: buffer_pb2.StageKey, sample: str) -> int:
    whole = await whole_experience(opened, key, sample)
    assert whole.row.response_length == LONG_TOKENS
    return len(token_strip(whole, None, color=colors_of(whole)[0]).tokens)


async def _timed(name: str, num_calls: int, ask: Callable[[int], Awaitable[int]]) -> MeasuredCalls:
    """Asks so often, after one call that is not counted."""
    num_rows = await ask(0)
    times, before = [], _cpu_by_process()
    for call in range(num_calls):
        begun = time.monotonic()
        num_rows = await ask(call)
        times.append(time.monotonic() - begun)
    times.sort()
    return MeasuredCalls(
        name=name,
        num_rows=num_rows,
        p50_seconds=times[len(times) // 2],
        p95_seconds=times[min(len(times) - 1, int(len(times) * 0.95))],
        cpu_seconds=_cpu_seconds_since(before) / num_calls,
    )


def _cpu_by_process() -> dict[int, float]:
    """Returns the processor seconds of each process below this one."""
    below = psutil.Process().children(recursive=True)
    return {process.pid: cpu_seconds([process]) for process in below}


def _cpu_seconds_since(before: Mapping[int, float]) -> float:
    """Returns the processor seconds since then; of sessions that have ended nothing is known."""
    now = _cpu_by_process()
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in now.items())


if __name__ == "__main__":
    main()
