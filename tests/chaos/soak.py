"""Work and attacks for a while, and the slopes of memory, files, connections and stores.

python -m tests.chaos.soak --minutes 40 --folder /var/tmp/soak     # three times: two hours

Experiments of changing tenants follow one another, each keeps the contents of two steps; 42
malformed requests a second go to all services (300,000 in two hours). Slopes count from the first
quarter on, when caches are filled; those of stores over all parts in the same folder. A row of
`benchmarks/results/soak.jsonl` holds one part.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import psycopg
from pydantic import JsonValue

from benchmarks.table import PerformanceClaim, print_claims
from tests.chaos.campaign import commit_now
from tests.chaos.sources import REPOSITORY
from tests.integration.hostile.arena import Arena, arena_in
from tests.integration.hostile.attack import Attack
from tests.integration.hostile.victim import known_values
from tests.integration.hostile.vitals import SERVICES
from tests.support.model_free.experiment import experiment_plan, run_to_end
from trinity.api.v1 import synchronizer_pb2 as pb

RESULTS = REPOSITORY / "benchmarks" / "results" / "soak.jsonl"
REQUESTS, EVERY_SECONDS = 420, 10.0
TENANTS, STEPS, KEEP_STEPS = 7, 8, 2
LOOK_SECONDS = 5.0
BLOCKS = 30
"""Number of means that a slope is fitted to: neighbouring samples depend on one another."""
QUANTILE = 2.05
"""97.5 % quantile of Student's t for this number of blocks."""
LEAST_MINUTES = 10
LIMIT = 1.0
CONTENTS = """
    SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
    WHERE relname LIKE 'payload%' AND relkind = 'r'
"""
STORES = ("contents, bytes", "WAL, bytes", "stream, bytes")
Series = dict[str, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How a figure changes."""

    mean: float
    percent_an_hour: float
    upper: float
    """End of its 95 % interval."""


def slope_of(series: list[tuple[float, float]]) -> Slope:
    """Least squares over means of blocks, in percent of the mean an hour."""
    ordered = np.array(series[len(series) // 4 :])
    blocks = np.array([block.mean(axis=0) for block in np.array_split(ordered, BLOCKS)])
    hours, values = blocks[:, 0] / 3600, blocks[:, 1]
    mean = float(values.mean()) or 1.0
    spread = hours - hours.mean()
    slope = float(spread @ values / (spread @ spread))
    rest = values - values.mean() - slope * spread
    error = float(np.sqrt(rest @ rest / (len(values) - 2) / (spread @ spread)))
    return Slope(
        mean=mean,
        percent_an_hour=100 * slope / mean,
        upper=100 * (slope + QUANTILE * error) / mean,
    )


async def soak(root: Path, seconds: float) -> tuple[Series, int, Attack]:
    """Returns what was seen, the number of experiments, and the requests with their ends."""
    series: Series = defaultdict(list)
    async with arena_in(root) as arena:
        known = await known_values(arena.at, experiment_plan(root, name="victim"))
        async with Attack(arena.at, seed=1, known=known) as attack, asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(_look(arena, series))
            attacking = tasks.create_task(_attack(attack))
            number = await _work(arena, root, time.monotonic() + seconds)
            looking.cancel()
            attacking.cancel()
        return series, number, attack


async def _work(arena: Arena, root: Path, until: float) -> int:
    begun = int(time.time())
    for number in count(1):
        buffer: JsonValue = {"total_steps": STEPS, "keep_steps": KEEP_STEPS}
        plan = experiment_plan(
            root, name=f"soak-{begun}-{number}", tenant=f"team-{number % TENANTS}", buffer=buffer
        )
        ended = await run_to_end(arena.at.synchronizer, plan)
        assert ended.state == pb.EXPERIMENT_STATE_FINISHED, ended.reason
        if time.monotonic() > until:
            return number
    raise AssertionError


async def _attack(attack: Attack) -> None:
    while True:
        begun = time.monotonic()
        await attack.go_on(REQUESTS)
        await asyncio.sleep(max(0.0, EVERY_SECONDS - (time.monotonic() - begun)))


async def _look(arena: Arena, series: Series) -> None:
    begun = time.monotonic()
    while True:
        seen = await asyncio.to_thread(_seen, arena)
        for name, value in seen.items():
            series[name].append((time.monotonic() - begun, value))
        await asyncio.sleep(LOOK_SECONDS)


def _seen(arena: Arena) -> dict[str, float]:
    infra = arena.job_dir / "infra"
    with psycopg.connect(arena.buffer_dsn) as connection:
        row = connection.execute(CONTENTS).fetchone()
    assert row is not None
    sizes = (_size(infra / "postgres", "pg_wal/*"), _size(infra / "nats", "**/*.blk"))
    seen = dict(zip(STORES, (float(row[0]), *sizes), strict=True))
    for name in (*SERVICES, "nats"):
        process = psutil.Process(arena.stack.pids[name])
        seen |= {
            f"{name}: memory, bytes": float(process.memory_info().rss),
            f"{name}: files": float(process.num_fds()),
            f"{name}: connections": float(len(process.net_connections())),
        }
    return seen


def _size(folder: Path, pattern: str) -> float:
    sizes = 0
    for path in folder.rglob(pattern):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:  # recycled meanwhile
            continue
    return float(sizes)


def _over_all(series: Series, file: Path) -> Series:
    """Puts what earlier parts saw of stores before it, and keeps all of it for later ones."""
    before: Series = json.loads(file.read_text()) if file.exists() else {}
    for name in STORES:
        end = before[name][-1][0] if before else 0.0
        series[name] = [*before.get(name, ()), *((end + at, one) for at, one in series[name])]
    file.write_text(json.dumps({name: series[name] for name in STORES}))
    return series


def main() -> int:
    """Soaks for one part, and writes its row; 1 where something grows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--folder", type=Path, help="of all parts; else a temporary one")
    arguments = parser.parse_args()
    if arguments.minutes < LEAST_MINUTES:
        parser.error(f"{LEAST_MINUTES} minutes at least: a slope needs {BLOCKS} means")
    with tempfile.TemporaryDirectory(prefix="trinity-soak-") as temporary:
        folder = arguments.folder or Path(temporary)
        series, number, attack = asyncio.run(soak(folder, 60 * arguments.minutes))
        series = _over_all(series, folder / "stores.json")
    slopes = {name: slope_of(values) for name, values in sorted(series.items())}
    row = {"commit": commit_now(), "minutes": arguments.minutes, "experiments": number}
    row |= {"requests": attack.codes.total(), "wrong": [str(one) for one in attack.wrong[:3]]}
    row |= {"slopes": {name: asdict(one) for name, one in slopes.items()}}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    claims = [
        PerformanceClaim(f"{name}, % an hour", one.upper, LIMIT, "<=")
        for name, one in slopes.items()
    ]
    print_claims(claims)
    return int(bool(attack.wrong) or not all(claim.holds for claim in claims))


if __name__ == "__main__":
    sys.exit(main())
