"""Training data from tables: rows of sft, dpo and cpt, and expert rows beside replayed rollouts."""

import json
import sqlite3
from pathlib import Path

import grpc
import pytest

from tests.integration.buffer.harness import Buffer
from tests.integration.buffer.plans import rollout_plan
from tests.unit.config.builders import CPT, DPO, SFT, stage
from trinity.api.v1 import buffer_pb2 as pb
from trinity.config.plan.stage_plan import StagePlan

COLUMNS: dict[str, dict[str, object]] = {
    "sft": {
        "message_list": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    },
    "dpo": {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
    "cpt": {"text": "a page"},
}
FORMATS: dict[str, dict[str, object]] = {
    "sft": {"messages_key": "message_list"},
    "dpo": {"prompt_type": "plaintext"},
    "cpt": {"prompt_key": "text"},
}
KINDS = {"sft": SFT, "dpo": DPO, "cpt": CPT}


def write_table(file: Path, kind: str, num_rows: int = 6) -> str:
    """A table `rows` in a file; answers its address."""
    columns = COLUMNS[kind]
    types = ", ".join(
        f"{name} {'JSON' if isinstance(value, list) else 'TEXT'}" for name, value in columns.items()
    )
    texts = [v if isinstance(v, str) else json.dumps(v) for v in columns.values()]
    marks = ", ".join("?" for _ in texts)
    with sqlite3.connect(file) as connection:
        connection.execute(f"CREATE TABLE rows (id INTEGER PRIMARY KEY, {types})")
        for _ in range(num_rows):
            names = ", ".join(columns)
            connection.execute(f"INSERT INTO rows ({names}) VALUES ({marks})", texts)
    return f"sqlite:///{file}"


def table_plan(kind: str, address: str, **changes: object) -> StagePlan:
    """Three rows a step, in order."""
    rows = {
        "storage_type": "sql",
        "path": address,
        "table": "rows",
        "format": FORMATS[kind],
        **changes,
    }
    buffer = {
        "train_batch_size": 3,
        "total_steps": None,
        "trainer_input": {"experience_buffer": rows},
    }
    return stage(KINDS[kind], buffer=buffer)


def data(rows: list[pb.BatchRow]) -> list[dict[str, object]]:
    return [json.loads(row.row_json) for row in rows if row.row_json]


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_of_a_table_are_trained_in_the_order_of_its_key(
    buffer: Buffer, tmp_path: Path, kind: str
) -> None:
    opened = await buffer.open(table_plan(kind, write_table(tmp_path / "data.db", kind)))
    assert (opened.num_tasks, opened.total_train_steps) == (6, 2)
    await buffer.begin()
    trained = [row for step in (1, 2) for row in data((await buffer.batch(step))[1])]
    assert trained == [{"id": number, **COLUMNS[kind]} for number in range(1, 7)]


async def test_a_table_that_is_not_there_is_named(buffer: Buffer, tmp_path: Path) -> None:
    address = write_table(tmp_path / "data.db", "sft")
    with pytest.raises(grpc.aio.AioRpcError, match="there is no table other"):
        await buffer.open(table_plan("sft", address, table="other"))


@pytest.mark.parametrize("kind", KINDS)
async def test_bad_rows_of_data_end_the_opening_or_are_left_out_and_named(
    buffer: Buffer, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "data.db"
    address = write_table(file, kind)
    column = list(COLUMNS[kind])[-1]
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE rows SET {column} = NULL WHERE id IN (2, 5)")
    with pytest.raises(
        grpc.aio.AioRpcError, match=rf"table rows, row 1 \(from 0\), column '{column}'"
    ):
        await buffer.open(table_plan(kind, address))
    opened = await buffer.open(table_plan(kind, address, on_bad_row="skip"))
    assert (opened.num_tasks, opened.total_train_steps) == (4, 1)
    [notice] = [
        event.notice.text for event in await buffer.events("notice") if event.HasField("notice")
    ]
    assert notice.startswith("2 of 6 rows of experience_buffer are left out: `on_bad_row: skip`")
    assert f"table rows, row 1 (from 0), column '{column}'" in notice
    await buffer.begin()
    assert [row["id"] for row in data((await buffer.batch(1))[1])] == [1, 3, 4]


async def test_another_policy_for_bad_rows_leaves_an_open_stage_with_its_rows(
    buffer: Buffer, tmp_path: Path
) -> None:
    """The policy may change when a run goes on, and then its data are read and checked again."""
    file = tmp_path / "data.db"
    address = write_table(file, "cpt")
    opened = await buffer.open(table_plan("cpt", address))
    assert (opened.num_tasks, opened.total_train_steps) == (6, 2)
    with sqlite3.connect(file) as connection:
        connection.execute("DELETE FROM rows WHERE id > 4")
    opened = await buffer.open(table_plan("cpt", address, on_bad_row="skip"))
    assert (opened.num_tasks, opened.total_train_steps) == (6, 2)
    await buffer.begin()
    trained = [row["id"] for step in (1, 2) for row in data((await buffer.batch(step))[1])]
    assert trained == [1, 2, 3, 4, 5, 6]


async def test_expert_rows_of_a_table_stand_beside_replayed_rollouts(
    buffer: Buffer, tmp_path: Path
) -> None:
    """Six rollouts an explore step; a batch has nine and three expert rows."""
    experts = {
        "storage_type": "sql",
        "path": write_table(tmp_path / "experts.db", "sft"),
        "table": "rows",
        "format": {"messages_key": "message_list"},
    }
    mix = {
        "algorithm_type": "mix",
        "repeat_times": 2,
        "sample_strategy_args": {"expert_data_ratio": 0.25},
    }
    replay = {"enable": True, "reuse_cooldown_time": 1}
    plan = rollout_plan(
        tmp_path,
        algorithm=mix,
        train_batch_size=12,
        trainer_input={
            "auxiliary_buffers": {"sft_dataset": experts},
            "experience_buffer": {"replay_buffer": replay},
        },
    )
    assert (plan.num_expert_rows, plan.num_rollout_rows, plan.num_fresh_rows) == (3, 9, 6)
    await buffer.open(plan)
    await buffer.begin()
    await buffer.record(0)
    drawn, rollouts = [], []
    for step in (1, 2, 3):
        await buffer.finish_all((await buffer.lease()).assignments)
        head, rows = await buffer.batch(step)
        assert head.metrics["sample/num_expert_rows"] == 3
        drawn += [row.row_index for row in rows if row.row_json]
        texts = [row.experience.sequence.response_text for row in rows if not row.row_json]
        rollouts.append(texts)
        await buffer.report(step)
        await buffer.record(step)
    assert drawn == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert [len(texts) for texts in rollouts] == [6, 9, 9]
    assert rollouts[1][6:] == rollouts[0][:3]
