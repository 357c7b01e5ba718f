"""What a run makes is also written where `experience_buffer.path` says, as it is committed."""

import asyncio
import json
import sqlite3
from pathlib import Path

import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import ROWS, rollout_plan

SECONDS = 60.0
pytestmark = pytest.mark.timeout(300)


def stored(path: Path) -> list[tuple[int, int, str]]:
    if not path.exists():
        return []
    with sqlite3.connect(path) as connection:
        asked = "SELECT number, explore_step, experience_id FROM experience ORDER BY id"
        try:
            return connection.execute(asked).fetchall()
        except sqlite3.OperationalError:  # it is being made
            return []


def lines(folder: Path) -> list[dict[str, object]]:
    path = folder / "experiences.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def until(num_rows: int, path: Path) -> None:
    async with asyncio.timeout(SECONDS):
        while len(stored(path) if path.suffix == ".db" else lines(path)) < num_rows:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("name", ["made.db", "made"])
async def test_committed_experiences_are_written_once_in_order(
    name: str, buffer: Buffer, tmp_path: Path
) -> None:
    path = tmp_path / name
    plan = rollout_plan(
        tmp_path,
        num_tasks=12,
        num_eval=2,
        trainer_input={"experience_buffer": {"path": str(path), "storage_type": "queue"}},
    )
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    for step in (1, 2):
        leased = (await buffer.lease()).assignments
        await buffer.finish_all(leased)
        await until(step * ROWS, path)
        await buffer.batch(step)
        await buffer.report(step)
        await buffer.record(step)
    if path.suffix == ".db":
        rows = stored(path)
    else:
        rows = [
            (int(str(row["number"])), int(str(row["explore_step"])), str(row["id"]))
            for row in lines(path)
        ]
        assert all(row["stage"] == buffer.key.stage for row in lines(path))
    numbers = [number for number, _, _ in rows]
    assert numbers == sorted(set(numbers))
    assert [step for _, step, _ in rows] == [1] * ROWS + [2] * ROWS
    assert len({sample for _, _, sample in rows}) == 2 * ROWS
