"""Tasksets from tables, rows from the hub, and places that must not be read."""

import json
import os
import sqlite3
from pathlib import Path

import grpc
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.integration.buffer.harness import Buffer, talk_to
from tests.integration.buffer.process import BufferProcess
from tests.support.stub_hub import StubHub, hub
from tests.unit.config.builders import SFT, stage
from trinity.cli.taskset import RowFile
from trinity.client import AsyncTasksets
from trinity.config.plan.stage_plan import StagePlan

MANY = 52_000
COMMIT, LATER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
__all__ = ["hub"]


def plan_of(**taskset: object) -> StagePlan:
    return stage(
        buffer={
            "batch_size": 1,
            "explorer_input": {"taskset": {"name": "train", "path": None, **taskset}},
        }
    )


async def tasks_of(buffer: Buffer, plan: StagePlan) -> list[str]:
    """The first tasks that are handed out."""
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    return [one.task_json for one in (await buffer.lease()).assignments]


async def test_a_table_is_read_once_for_an_experiment(
    process: BufferProcess, buffer_dsn: str
) -> None:
    with psycopg.connect(buffer_dsn) as connection:
        connection.execute(
            "CREATE TABLE buffer.questions (id int PRIMARY KEY, prompt text, due date, w numeric)"
        )
        connection.execute("INSERT INTO buffer.questions VALUES (2, 'b', NULL, 1.5)")
        connection.execute("INSERT INTO buffer.questions VALUES (1, 'a', '2024-02-29', 2)")
    plan = plan_of(storage_type="sql", path=_address(buffer_dsn), table="buffer.questions")
    async with talk_to(process) as buffer:
        assert (await buffer.open(plan)).num_tasks == 2
        with psycopg.connect(buffer_dsn) as connection:
            connection.execute("INSERT INTO buffer.questions VALUES (3, 'c', NULL, 0)")
        assert (await buffer.open(plan)).num_tasks == 2
        assert await tasks_of(buffer, plan) == [
            '{"id": 1, "prompt": "a", "due": "2024-02-29", "w": 2.0}'
        ]
    async with talk_to(process) as buffer:
        assert (await buffer.open(plan)).num_tasks == 3


def _address(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**parts)


async def test_whole_tasks_in_a_file_of_sqlite_are_read_and_never_written(
    buffer: Buffer, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE train (id INTEGER PRIMARY KEY, raw_task JSON)")
        connection.execute("""INSERT INTO train (raw_task) VALUES ('{"prompt": "1+1="}')""")
    connection.close()
    before = file.read_bytes()
    plan = plan_of(storage_type="sql", path=f"sqlite:///{file}")
    assert await tasks_of(buffer, plan) == ['{"prompt": "1+1="}']
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("taskset", "reason"),
    [
        ({"path": "sqlite:////nowhere/x.db"}, "there is no database /nowhere/x.db"),
        ({"path": "postgresql://u:hidden@127.0.0.1:1/x"}, "table train cannot be read"),
    ],
)
async def test_a_table_that_cannot_be_read_is_named_without_its_password(
    buffer: Buffer, taskset: dict[str, str], reason: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match=reason) as error:
        await buffer.open(plan_of(storage_type="sql", **taskset))
    assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "hidden" not in (error.value.details() or "")


def peak_mebibytes(process: BufferProcess) -> float:
    """Most memory that the process has had."""
    assert process.process is not None
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    [kibibytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(kibibytes) / 1024


async def test_tasks_are_read_sent_and_drawn_without_being_held_in_memory(
    own_process: BufferProcess, tmp_path: Path
) -> None:
    file = tmp_path / "many.jsonl"
    with file.open("w") as lines:
        for number in range(MANY):
            lines.write(json.dumps({"prompt": "x" * 4000, "response": "", "n": number}) + "\n")
    num_mebibytes = file.stat().st_size / 2**20
    before = peak_mebibytes(own_process)
    easy_first = {"selector_type": "offline_easy2hard", "feature_keys": ["n"]}
    async with talk_to(own_process) as buffer:
        [task] = await tasks_of(buffer, plan_of(path=str(file), data_selector=easy_first))
        assert json.loads(task)["n"] == MANY - 1
    async with AsyncTasksets(own_process.address, tenant="many") as tasksets:
        assert (await tasksets.submit("many", RowFile(file))).num_stored == MANY
    assert num_mebibytes > 200
    assert peak_mebibytes(own_process) < before + num_mebibytes / 2


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """What the hub's own client leaves behind after it has fetched a dataset."""
    home = tmp_path / "hub"
    dataset = home / "datasets--people--sums"
    for directory in ("refs", "blobs", f"snapshots/{COMMIT}/main"):
        (dataset / directory).mkdir(parents=True)
    (dataset / "refs" / "main").write_text(COMMIT)
    (dataset / "blobs" / "content").write_text('{"prompt": "1+1="}\n')
    link = dataset / "snapshots" / COMMIT / "main" / "train-0.jsonl"
    link.symlink_to(Path("../../../blobs/content"))
    return home


async def test_a_dataset_of_the_hub_is_read_from_the_cache_where_the_hub_is_out_of_reach(
    buffer_dsn: str, nats_url: str, hub_cache: Path, tmp_path: Path
) -> None:
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    extra = {
        "HF_HUB_CACHE": str(hub_cache),
        "HF_HUB_OFFLINE": "1",
        "TRINITY_BUFFER_TASKSET_ROOTS": str(allowed),
        "TRINITY_BUFFER_TASKSET_ADDRESSES": "hub",
    }
    async with BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process:
        async with talk_to(process) as buffer:
            plan = plan_of(path="people/sums", subset_name="main")
            assert await tasks_of(buffer, plan) == ['{"prompt": "1+1="}']
        async with talk_to(process) as buffer:
            with pytest.raises(grpc.aio.AioRpcError, match="not in the hub's cache"):
                await buffer.open(plan_of(path="people/products"))
            await _assert_places_are_refused(buffer, allowed, tmp_path)


async def test_a_dataset_of_the_hub_is_stored_once_for_each_of_its_commits(
    buffer_dsn: str, nats_url: str, hub: StubHub, tmp_path: Path
) -> None:
    hub.commits[COMMIT] = {"README.md": b"sums", "train.jsonl": b'{"prompt": "1+1="}\n'}
    hub.commits[LATER] = {"train.jsonl": b'{"prompt": "2+2="}\n'}
    hub.newest = COMMIT
    extra = {**hub.variables, "HF_HUB_CACHE": str(tmp_path / "cache")}
    plan = plan_of(path=hub.dataset)
    async with BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process:
        for commit, task in ((COMMIT, '{"prompt": "1+1="}'), (LATER, '{"prompt": "2+2="}')):
            hub.newest = commit
            async with talk_to(process) as buffer:
                assert await tasks_of(buffer, plan) == [task]
    extra["HF_HUB_OFFLINE"] = "1"
    offline = BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra)
    async with offline as process, talk_to(process) as buffer:
        assert await tasks_of(buffer, plan) == ['{"prompt": "2+2="}']


@pytest.fixture
def hub_of_two(hub: StubHub) -> StubHub:
    """With a dataset to which somebody has committed twice."""
    hub.commits[COMMIT] = {"train.jsonl": b'{"prompt": "1+1="}\n'}
    hub.commits[LATER] = {"train.jsonl": b'{"prompt": "2+2="}\n'}
    return hub


async def test_rows_of_the_hub_are_those_of_the_commit_that_they_are_stored_under(
    buffer_dsn: str, nats_url: str, hub_of_two: StubHub, tmp_path: Path
) -> None:
    """Somebody commits meanwhile: of that nothing is fetched, and it is not what is here."""
    hub = hub_of_two
    hub.newest, hub.by_now = COMMIT, LATER
    extra = {**hub.variables, "HF_HUB_CACHE": str(tmp_path / "cache")}
    for offline in ("0", "1"):
        extra["HF_HUB_OFFLINE"] = offline
        started = BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra)
        async with started as process, talk_to(process) as buffer:
            assert await tasks_of(buffer, plan_of(path=hub.dataset)) == ['{"prompt": "1+1="}']
    assert hub.sent == [(COMMIT, "train.jsonl")]


async def test_what_is_committed_while_rows_are_read_is_for_whoever_opens_a_stage_then(
    buffer_dsn: str, nats_url: str, hub_of_two: StubHub, tmp_path: Path
) -> None:
    hub = hub_of_two
    hub.newest, hub.meanwhile = COMMIT, LATER
    extra = {**hub.variables, "HF_HUB_CACHE": str(tmp_path / "cache")}
    plan = plan_of(path=hub.dataset)
    async with BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process:
        async with talk_to(process) as buffer:
            assert await tasks_of(buffer, plan) == ['{"prompt": "1+1="}']
        assert hub.sent == [(COMMIT, "train.jsonl")]
        async with talk_to(process) as buffer:
            assert await tasks_of(buffer, plan) == ['{"prompt": "2+2="}']


def of_dataset(name: str, kind: str) -> StagePlan:
    """Two rows of data a step, alone or beside two rollouts."""
    rows = {"storage_type": "file", "path": name, "format": {"prompt_type": "plaintext"}}
    if kind == "data":
        given: object = {"experience_buffer": rows}
        return stage(
            SFT, buffer={"train_batch_size": 2, "total_steps": None, "trainer_input": given}
        )
    tasks = {"taskset": {"name": "train", "path": name}}
    return stage(
        algorithm={"algorithm_type": "mix", "repeat_times": 2},
        buffer={
            "batch_size": 1,
            "train_batch_size": 4,
            "explorer_input": tasks,
            "trainer_input": {"auxiliary_buffers": {"sft_dataset": rows}},
        },
    )


async def data_of(buffer: Buffer, plan: StagePlan) -> list[str]:
    """The rows of data of the first batch."""
    await buffer.open(plan)
    await buffer.begin()
    if plan.needs_rollout:
        await buffer.record(0)
        await buffer.finish_all((await buffer.lease()).assignments)
    return [row.row_json for row in (await buffer.batch(1))[1] if row.row_json]


@pytest.mark.parametrize("kind", ["data", "experts"])
async def test_rows_to_train_on_come_from_the_hub_as_tasks_do(
    buffer_dsn: str, nats_url: str, hub: StubHub, tmp_path: Path, kind: str
) -> None:
    older, newer = (
        [f'{{"prompt": "{n}+{n}=", "response": "{2 * n}"}}' for n in numbers]
        for numbers in ((1, 2), (3, 4))
    )
    hub.commits[COMMIT] = {"train.jsonl": "\n".join(older).encode()}
    hub.commits[LATER] = {"train.jsonl": "\n".join(newer).encode()}
    extra = {**hub.variables, "HF_HUB_CACHE": str(tmp_path / "cache")}
    plan = of_dataset(hub.dataset, kind)
    async with BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra) as process:
        for hub.newest, rows in ((COMMIT, older), (LATER, newer)):
            async with talk_to(process) as buffer:
                assert await data_of(buffer, plan) == rows
        async with talk_to(process) as buffer:
            with pytest.raises(grpc.aio.AioRpcError, match="no public dataset on the hub"):
                await buffer.open(of_dataset("people/products", kind))
    extra["HF_HUB_OFFLINE"] = "1"
    offline = BufferProcess(buffer_dsn, nats_url, tmp_path / "buffer.log", extra)
    async with offline as process:
        async with talk_to(process) as buffer:
            assert await data_of(buffer, plan) == newer
        async with talk_to(process) as buffer:
            with pytest.raises(grpc.aio.AioRpcError, match="not in the hub's cache"):
                await buffer.open(of_dataset("people/products", kind))


async def _assert_places_are_refused(buffer: Buffer, allowed: Path, outside: Path) -> None:
    (outside / "secret.jsonl").write_text('{"a": 1}\n')
    (allowed / "link.jsonl").symlink_to(outside / "secret.jsonl")
    (allowed / "data").mkdir()
    (allowed / "data" / "train.jsonl").symlink_to(outside / "secret.jsonl")
    os.mkfifo(allowed / "pipe.jsonl")
    for place, reason in (
        (outside / "secret.jsonl", "lies outside of"),
        (allowed / "link.jsonl", "lies outside of"),
        (allowed / "data", "lies outside of"),
        (allowed / "pipe.jsonl", "is a FIFO"),
        (Path("/dev/zero"), "lies outside of"),
    ):
        with pytest.raises(grpc.aio.AioRpcError, match=reason) as error:
            await buffer.open(plan_of(path=str(place)))
        assert error.value.code() == grpc.StatusCode.FAILED_PRECONDITION
