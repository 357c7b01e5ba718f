"""Images: stored once a tenant, read by its users, refused to others, and deleted unused."""

import asyncio
import json
import os
import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import psycopg
import pytest

from services.buffer.domain.tasks import CHUNK_ROWS
from services.buffer.store.database import BufferDatabase
from services.buffer.store.media import (
    delete_unused_media,
    hold_media,
    segment_user,
    store_media,
    use_media,
)
from services.buffer.store.segments import remove_retired
from services.explorer.clients.buffer import ExplorerBufferClient
from services.explorer.media import MediaStore
from tests.integration.buffer.calls import CALL_SECONDS
from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.made import Made
from tests.integration.buffer.process import BufferProcess
from tests.integration.buffer.test_sessions import settle, turn_of
from tests.integration.buffer.test_task_pipeline import plan_of as piped
from tests.integration.buffer.test_taskset_sources import plan_of, tasks_of
from tests.support.images import BAD, data_url, png
from trinity.api.v1 import buffer_pb2 as pb
from trinity.client import AsyncTasksets
from trinity.data.images import image_of, part_of
from trinity.errors import PreconditionFailed
from trinity.runtime.postgres import async_engine
from trinity.runtime.rpc.channel import open_channel
from trinity.types import BlobRef

NUM_RUNS = 8
COMMITTED, REJECTED = pb.CommitReport.STATE_COMMITTED, pb.CommitReport.STATE_REJECTED
STORED = "SELECT coalesce(sum(length(body)), 0) FROM media WHERE tenant = %s"
USES = "SELECT used_by FROM media_use WHERE tenant = %s AND sha256 = %s"
AGED = "UPDATE media SET stored_at = stored_at - interval '25 hours' WHERE tenant = %s"
RETIRED = "UPDATE segment SET retired_at = now() WHERE tenant = %s"


@pytest.fixture
def tenant(buffer: Buffer) -> str:
    own = f"t-{uuid.uuid4()}"
    buffer.key = replace(buffer.key, tenant=own)
    return own


@asynccontextmanager
async def media_of(process: BufferProcess, tenant: str) -> AsyncIterator[MediaStore]:
    """What an explorer has of a tenant, without anything in memory yet."""
    async with open_channel(process.address) as channel:
        yield MediaStore(ExplorerBufferClient(channel, str(uuid.uuid4())), tenant)


@asynccontextmanager
async def database_of(dsn: str) -> AsyncIterator[BufferDatabase]:
    engine = async_engine(dsn, "buffer")
    database = BufferDatabase(engine)
    database.open()
    yield database
    await engine.dispose()


def asked(dsn: str, query: str, *values: object) -> list[Any]:
    with psycopg.connect(dsn) as connection:
        done = connection.execute(query, values)
        return [row[0] for row in done.fetchall()] if done.description else []


def write(folder: Path, *rows: dict[str, object]) -> str:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def row(image: object, prompt: str = "<image>How many?") -> dict[str, object]:
    return {"prompt": prompt, "response": "2", "images": [image]}


async def leased(buffer: Buffer, path: str | None, **more: object) -> pb.Assignment:
    plan = plan_of(path=path, format={"image_key": "images"}, repeat_times=NUM_RUNS, **more)
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return (await buffer.lease()).assignments[0]


def large() -> bytes:
    """An image of two chunks, which fits into a submitted row."""
    pixels = os.urandom(3 * 700 * 700)
    from PIL import Image

    from tests.support.images import saved

    return saved(Image.frombytes("RGB", (700, 700), pixels))


async def test_rows_have_hashes_and_their_images_are_stored_once(
    process: BufferProcess, buffer: Buffer, tenant: str, shared_dsn: str, tmp_path: Path
) -> None:
    content, other = large(), png()
    (tmp_path / "a.png").write_bytes(content)
    path = write(tmp_path, row("a.png"), row(data_url(content)), row(data_url(other)))
    plan = plan_of(path=path, format={"image_key": "images"})
    [task] = [json.loads(text) for text in await tasks_of(buffer, plan)]
    ref = image_of(content).ref
    sha256 = ref.sha256.hex()
    part = {"type": "image", "sha256": sha256, "size": ref.size, "media_type": "image/png"}
    assert task == row(part)
    assert asked(shared_dsn, STORED, tenant) == [len(content) + len(other)]
    async with media_of(process, tenant) as media:
        hashes = [image_of(own).ref.sha256 for own in (other, content)]
        assert list((await media.read(hashes)).values()) == [other, content]
    async with media_of(process, "another") as media:
        with pytest.raises(PreconditionFailed, match=f"tenant another uses the image {sha256}"):
            await media.read([ref.sha256])


@pytest.mark.parametrize("name", ["cut", "bomb", "long", "page.png"])
async def test_a_bad_image_is_named_by_its_row(buffer: Buffer, tmp_path: Path, name: str) -> None:
    content, sentence = BAD[name]
    (tmp_path / name).write_bytes(content)
    path = write(tmp_path, row(data_url(png())), row(name))
    with pytest.raises(grpc.RpcError, match=f"train.jsonl:2, column 'images': .*{sentence}"):
        await buffer.open(plan_of(path=path, format={"image_key": "images"}))


async def test_eight_rollouts_of_an_image_store_it_once(
    buffer: Buffer, tenant: str, shared_dsn: str, tmp_path: Path
) -> None:
    content = large()
    ref = image_of(content).ref
    task = await leased(buffer, write(tmp_path, row(data_url(content))))
    results = [buffer.complete(task, run, Made(blobs=(ref, ref))) for run in task.runs]
    assert {told.reason for told in await buffer.settle(*results)} == {""}
    [num_bytes] = asked(shared_dsn, STORED, tenant)
    assert num_bytes <= 1.05 * ref.size, "of 8 rollouts over one image"
    users = {own.partition("/")[0] for own in asked(shared_dsn, USES, tenant, ref.sha256)}
    assert users == {"taskset", "segment"}
    _, batch = await buffer.batch(1)
    assert {blob.sha256 for sample in batch for blob in sample.experience.blobs} == {ref.sha256}


USERS = "SELECT count(DISTINCT used_by) FROM media_use WHERE tenant = %s"
BODIES = "SELECT body FROM task WHERE tenant = %s ORDER BY taskset_id, index"


async def test_submitted_rows_have_hashes_and_bad_ones_are_named(
    process: BufferProcess, buffer: Buffer, tenant: str, shared_dsn: str
) -> None:
    content, other = large(), png()
    foreign = part_of(image_of(png((1, 2, 3))).ref)
    said = [{"role": "user", "content": [{"type": "image_url", "image_url": data_url(other)}]}]
    rows: list[dict[str, object]] = [
        row(data_url(content)),
        *(row(data_url(BAD[name][0])) for name in BAD),
        {"prompt": said, "note": "text as it is"},
        row(foreign),
        {"prompt": "1+1?", "response": "2", "figure": data_url(content), "images": ["a.png"]},
    ]
    async with AsyncTasksets(process.address, tenant=tenant) as tasksets:
        request_id = str(uuid.uuid4())
        told = await tasksets.submit("squares", rows, request_id=request_id)
        again = await tasksets.submit("squares", rows, request_id=request_id)
    assert told == again and (told.num_stored, told.num_refused) == (3, 1 + len(BAD))
    reasons = {refused.index: refused.reason for refused in told.refused}
    for index, (_, sentence) in enumerate(BAD.values(), 1):
        assert re.match(f"column 'images': image 0: .*{sentence}", reasons[index])
    assert "given by a hash, which is no right to it" in reasons[len(BAD) + 2]
    own, small = (part_of(image_of(each).ref) for each in (content, other))
    assert [json.loads(body) for body in asked(shared_dsn, BODIES, tenant)] == [
        row([own]) | {"images": [own]},
        {"prompt": [{"role": "user", "content": [small]}], "note": "text as it is"},
        {"prompt": "1+1?", "response": "2", "figure": [own], "images": ["a.png"]},
    ]
    assert asked(shared_dsn, STORED, tenant) == [len(content) + len(other)]
    task = await leased(buffer, None, storage_type="client", name="squares")
    assert b"base64" not in task.SerializeToString()
    async with media_of(process, tenant) as media:
        sha256 = image_of(content).ref.sha256
        assert await media.read([sha256]) == {sha256: content}


NUM_BYTES = sum(len(png((red, 0, 0))) for red in range(200))


async def test_an_upload_with_images_goes_on_and_stores_none_twice(
    buffer: Buffer, tenant: str, shared_dsn: str
) -> None:
    rows = [json.dumps(row(data_url(png((n % 200, 0, 0))))) for n in range(CHUNK_ROWS + 9)]
    header = pb.TasksetHeader(tenant=tenant, name="broken", request_id=str(uuid.uuid4()))
    cut = [
        pb.SubmitTasksetRequest(header=header),
        pb.SubmitTasksetRequest(rows=pb.TaskRows(json=rows)),
    ]
    end = pb.SubmitTasksetRequest(end=pb.TasksetEnd(), num_before=len(rows))
    with pytest.raises(grpc.RpcError, match="without an `end`"):
        await buffer.stub.SubmitTaskset(iter(cut), timeout=CALL_SECONDS)
    stored = asked(shared_dsn, STORED, tenant)
    whole = await buffer.stub.SubmitTaskset(iter([*cut, end]), timeout=CALL_SECONDS)
    assert whole.num_stored == len(rows)
    assert asked(shared_dsn, STORED, tenant) == stored == [NUM_BYTES]
    assert asked(shared_dsn, "SELECT count(*) FROM media_use WHERE tenant = %s", tenant) == [200]
    column = {"name": "column_score", "args": {"column": "response", "score": "difficulty"}}
    taskset = {"name": "broken", "storage_type": "client", "format": {"image_key": "images"}}
    await buffer.open(piped(None, {"operators": [column]}, **taskset))
    assert asked(shared_dsn, USERS, tenant) == [2], "what a pipeline makes of them uses them, too"


async def test_what_names_an_image_of_another_tenant_is_refused(
    process: BufferProcess, buffer: Buffer, tenant: str, tmp_path: Path
) -> None:
    async with media_of(process, "another") as media:
        foreign = await media.put(png((1, 2, 3)))
    task = await leased(buffer, write(tmp_path, row(data_url(png()))))
    [told] = await buffer.settle(buffer.complete(task, 0, Made(blobs=(foreign,))))
    assert told.state == REJECTED
    assert told.reason == f"its image {foreign.sha256.hex()} is not stored for its tenant"
    turn = turn_of(buffer, task)
    turn.media_sha256.append(foreign.sha256)
    [told] = await settle(buffer, turn)
    assert told.state == REJECTED and "is not stored for its tenant" in told.reason
    async with media_of(process, tenant) as media:
        own = await media.put(png((1, 2, 3)))
    turn = turn_of(buffer, task)
    turn.media_sha256.append(own.sha256)
    assert [told.state for told in await settle(buffer, turn)] == [COMMITTED]
    async with media_of(process, tenant) as media:
        assert await media.read([own.sha256]) == {own.sha256: png((1, 2, 3))}


async def test_an_upload_needs_its_hash_and_an_image(buffer: Buffer, tenant: str) -> None:
    content = png()
    bad: list[tuple[dict[str, Any], str]] = [
        ({"media_type": "text/html"}, "media_type"),
        ({"sha256": b"0" * 32}, "this SHA-256"),
    ]
    for changed, sentence in bad:
        first: dict[str, Any] = {
            "tenant": tenant,
            "sha256": image_of(content).ref.sha256,
            "chunk": content,
        }
        request = pb.UploadBlobRequest(**{**first, "media_type": "image/png", **changed})
        with pytest.raises(grpc.RpcError, match=sentence):
            await buffer.stub.UploadBlob(iter([request]), timeout=CALL_SECONDS)


async def test_what_nothing_uses_goes_after_a_day(
    process: BufferProcess, buffer: Buffer, tenant: str, shared_dsn: str, tmp_path: Path
) -> None:
    content = png((5, 5, 5))
    task = await leased(buffer, write(tmp_path, row(data_url(png()))))
    async with media_of(process, tenant) as media, database_of(shared_dsn) as database:
        used, unused = await media.put(content), await media.put(png((6, 6, 6)))
        result = buffer.complete(task, 0, Made(blobs=(used,)))
        assert [told.state for told in await buffer.settle(result)] == [COMMITTED]
        await delete_unused_media(database)
        assert asked(shared_dsn, STORED, tenant) == [sum(own.size for own in (used, unused, ref()))]
        asked(shared_dsn, AGED, tenant)
        await delete_unused_media(database)
        assert asked(shared_dsn, STORED, tenant) == [used.size + ref().size]
        asked(shared_dsn, RETIRED, tenant)
        async with database.autocommit() as connection:
            assert await remove_retired(connection) == 1
        await delete_unused_media(database)
        assert asked(shared_dsn, STORED, tenant) == [ref().size]


def ref() -> BlobRef:
    return image_of(png()).ref


async def test_an_image_that_gets_a_use_while_it_is_deleted_stays(
    shared_dsn: str, tenant: str
) -> None:
    async with database_of(shared_dsn) as database:
        async with database.transaction() as connection:
            await store_media(connection, tenant, ref(), png())
        asked(shared_dsn, AGED, tenant)
        async with asyncio.TaskGroup() as group, database.transaction() as connection:
            assert await hold_media(connection, tenant, {ref().sha256}) == {ref().sha256}
            group.create_task(delete_unused_media(database))
            await use_media(connection, tenant, segment_user(1), {ref().sha256})
        assert asked(shared_dsn, STORED, tenant) == [ref().size]
