"""An address where a path belongs is refused, and not taken for a relative path."""

import pytest

from tests.unit.config.builders import config
from tests.unit.subtests import as_subtests
from trinity.config.planning import plan_experiment
from trinity.errors import UserError

TASKS = "buffer.explorer_input.taskset"
ROWS = "buffer.trainer_input.experience_buffer"


def nested(key: str, value: object) -> dict[str, object]:
    for name in reversed(key.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def complaint(*changes: dict[str, object]) -> str:
    merged: dict[str, object] = {}
    for change in changes:
        merged.update(change)
    with pytest.raises(UserError) as caught:
        plan_experiment(config(**merged))
    return str(caught.value)


@as_subtests(
    ("key", "address"),
    [
        (f"{TASKS}.path", "s3://bucket/x.jsonl"),
        (f"{TASKS}.path", "hf://datasets/a/b"),
        (f"{TASKS}.path", "https://example.org/rows.parquet"),
        (f"{ROWS}.path", "mysql://host/db"),
        (f"{ROWS}.path", "postgresql+psycopg2://host/db"),
        ("model.model_path", "hdfs://cluster/models/tiny"),
        ("model.critic_model_path", "gs://bucket/critic"),
        ("checkpoint_root_dir", "oss://bucket/runs"),
        ("model.chat_template_path", "https://example.org/template.jinja"),
    ],
)
def test_an_address_that_nothing_reads_is_named(key: str, address: str) -> None:
    said = complaint(nested(key, address))
    assert f"`{key}: {address}` is an address" in said
    assert ("`postgresql://...`" in said) is key.endswith(".path")


def test_all_of_them_are_said_at_once_and_without_a_password() -> None:
    said = complaint(
        {"checkpoint_root_dir": "s3://b/runs"},
        nested(f"{ROWS}.path", "mysql://me:secret@host/db"),
    )
    assert "`checkpoint_root_dir: s3://b/runs`" in said
    assert "mysql://me:***@host/db" in said
    assert "secret" not in said


def test_the_path_of_a_file_address_is_told() -> None:
    said = complaint(nested(f"{TASKS}.path", "file:///data/x.jsonl"))
    assert f"`{TASKS}.path: file:///data/x.jsonl` must be a path: write /data/x.jsonl" in said


def test_the_address_of_a_table_is_judged_once() -> None:
    said = complaint(
        nested(TASKS, {"name": "train", "storage_type": "sql", "path": "mysql://host/rows"})
    )
    [line] = [line for line in said.splitlines() if f"{TASKS}.path" in line]
    assert "is not a database's address" in line


@pytest.mark.parametrize(
    "path", ["sqlite:///made.db", "postgresql://me@host/db", "made:/x", "s3:/b"]
)
def test_databases_and_odd_names_of_folders_are_taken(path: str) -> None:
    plan_experiment(config(**nested(f"{ROWS}.path", path)))
