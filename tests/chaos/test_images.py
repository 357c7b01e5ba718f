"""A run whose tasks have images: whatever dies, each is there once, for as long as it is used.

With a protection off, the check finds something.
"""

import asyncio
import hashlib
import json

import psycopg
import pytest
from pydantic import JsonValue

from services.buffer.store.experiences import CODEC
from tests.chaos.arena import Arena
from tests.chaos.crash import DEATHS
from tests.chaos.shared_arena import ON_IT
from tests.support.images import data_url, png
from tests.support.model_free.experiment import experiment_plan
from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.api.v1.experience_pb2 import Experience
from trinity.client import AsyncTasksets
from trinity.data.codec import experience_from_proto
from trinity.data.images import image_of

pytestmark = [ON_IT, pytest.mark.timeout(900)]

END_SECONDS = 400.0
NUM_STEPS = 3
STAGE: JsonValue = {
    "stage_name": "look",
    "mode": "explore",
    "algorithm": {"repeat_times": 2, "kl_loss_fn": "none"},
}
IMAGES = [png((number, 9, 9)) for number in range(16)]
ROWS = [
    {"prompt": f"{i}+{i}=", "response": str(2 * i), "image": data_url(IMAGES[i % len(IMAGES)])}
    for i in range(4 * len(IMAGES))
]
UNUSED = image_of(png((1, 2, 3)))
INSERTED = "INSERT INTO media VALUES ('default', %s, 0, %s, 'image/png', %s)"
AGED = "UPDATE media SET stored_at = stored_at - interval '25 hours'"
STORED = """
    SELECT sha256, string_agg(body, ''::bytea ORDER BY number) FROM media WHERE tenant = 'default'
    GROUP BY sha256
"""
RUNS = """
    SELECT count(*), count(DISTINCT (assignment_id, run)) FROM experience
    WHERE experiment_id = %s AND state <> 'derived'
"""
SAMPLES = """
    SELECT body, 'segment/' || segment_id FROM payload WHERE experiment_id = %s AND codec = %s
"""


async def ended(arena: Arena, name: str, *points: str, of_client: bool = False) -> list[str]:
    """Runs with the buffer killed at each point; returns the findings."""
    num_before = len(list(arena.folder.read(DEATHS)))
    taskset: dict[str, JsonValue] = {"name": name, "format": {"image_key": "image"}}
    if of_client:
        taskset |= {"storage_type": "client", "path": None}
    plan = experiment_plan(
        arena.root / name,
        name=name,
        stages=[STAGE],
        buffer={"total_steps": NUM_STEPS, "explorer_input": {"taskset": taskset}},
    )
    lines = "".join(json.dumps(row) + "\n" for row in ROWS)
    (arena.root / name / f"{name}.jsonl").write_text(lines)
    for point in points:
        arena.folder.arm(point)
    if of_client:
        async with AsyncTasksets(arena.stack.addresses.buffer, patience_seconds=300) as tasksets:
            told = await tasksets.submit(name, ROWS)
        assert (told.num_stored, told.num_refused) == (len(ROWS), 0)
    experiment = await arena.run_plan(plan, end_seconds=END_SECONDS)
    assert experiment.state == pb.EXPERIMENT_STATE_FINISHED, experiment.reason
    assert len(list(arena.folder.read(DEATHS))) - num_before == len(points)
    return await asyncio.to_thread(wrong_images, arena, experiment)


def wrong_images(arena: Arena, experiment: pb.Experiment) -> list[str]:
    """Images that are not there once and whole, or not used by a sample that has them."""
    with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
        stored: dict[bytes, bytes] = dict(connection.execute(STORED).fetchall())
        used = set(connection.execute("SELECT sha256, used_by FROM media_use").fetchall())
        samples = connection.execute(SAMPLES, [experiment.id, CODEC]).fetchall()
        [runs] = connection.execute(RUNS, [experiment.id]).fetchall()
    wrong = [] if sorted(stored.values()) == sorted(IMAGES) else [f"{len(stored)} are stored"]
    wrong += [own.hex() for own, body in stored.items() if hashlib.sha256(body).digest() != own]
    num_runs = NUM_STEPS * 4 * 2
    wrong += [] if runs == (num_runs, num_runs) else [f"{runs} samples of {num_runs} runs"]
    for body, segment in samples:
        [image] = experience_from_proto(Experience.FromString(body)).blobs
        if (image.sha256, segment) not in used:
            wrong.append(f"{image.sha256.hex()} is not used by {segment}")
    return wrong


async def test_images_are_there_once_whoever_dies_and_unused_ones_go(arena: Arena) -> None:
    of_files = ("image-stored", "images-used", "rows-with-images", "samples-use-images")
    assert await ended(arena, "seeing-files", *(f"buffer.{own}" for own in of_files)) == []
    of_client = ("image-taken", "upload-stored")
    points = [f"buffer.{own}" for own in of_client]
    assert await ended(arena, "seeing-client", *points, of_client=True) == []
    with psycopg.connect(arena.secret("buffer-postgres-dsn")) as connection:
        ref = UNUSED.ref
        connection.execute(INSERTED, [ref.sha256, ref.size, UNUSED.content])
        connection.execute(AGED)
    of_cleaning = ("buffer.image-stored", "buffer.images-to-go")  # a buffer starts with it
    assert await ended(arena, "seeing-again", *of_cleaning) == []


async def test_without_its_protection_the_check_finds_something(arena: Arena) -> None:
    arena.folder.switch_off("samples-use-images")
    try:
        found = await ended(arena, "seeing-weak")
    finally:
        arena.folder.switch_on("samples-use-images")
    assert "is not used by segment/" in found[0]
