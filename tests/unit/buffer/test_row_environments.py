"""Rows of a hub's environment, read by the process that reads rows."""

import json
from pathlib import Path

import pytest

from services.buffer.domain.stage import TasksetKind
from services.buffer.domain.tasks import NeededTaskset
from services.buffer.tasksets.library import content_identity, row_source_of
from services.buffer.tasksets.row_sources import RowSource
from services.buffer.tasksets.task_pipeline import read_rows
from services.buffer.tenants import TenantGrants
from tests.support.stand_in_hub import ROWS, make_hub
from trinity.config.model_code_policy import AGENTS_VARIABLE
from trinity.errors import PreconditionFailed
from trinity.runtime.security.credentials import VARIABLE
from trinity.user_code.hubs.place import HUBS_VARIABLE, HubPlace


def source_of(path: str, **arguments: int) -> RowSource:
    place = str(HubPlace("verifiers", path, {**arguments}))
    needed = NeededTaskset(
        name="sums", kind=TasksetKind.TRAIN, path=place, split="train", subset_name=None
    )
    return row_source_of(
        needed, place, TenantGrants(tenant="a", roots=(), addresses=(), has_functions=False)
    )


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUBS_VARIABLE, str(tmp_path / "hubs"))
    monkeypatch.chdir(tmp_path)
    make_hub(tmp_path / "hubs", "verifiers")


async def rows_of(source: RowSource) -> list[object]:
    text = b"".join([lines async for lines in read_rows("sums", source, [])])
    return [json.loads(line) for line in text.splitlines()]


async def test_rows_come_from_the_hub_through_the_reader() -> None:
    assert await rows_of(source_of("sums")) == ROWS
    assert await rows_of(source_of("sums", num_tasks=2)) == ROWS[:2]


@pytest.mark.parametrize("path", ["broken", "gone"])
async def test_what_the_hub_says_of_a_task_set_names_the_taskset(path: str) -> None:
    with pytest.raises(PreconditionFailed, match=f"^taskset sums: .*{path}"):
        await rows_of(source_of(path))


def test_each_experiment_reads_the_rows_once() -> None:
    source = source_of("sums")
    assert content_identity("sums", source, "a") == content_identity("sums", source, "a")
    assert content_identity("sums", source, "a") != content_identity("sums", source, "b")
    assert content_identity("sums", source, "a") != content_identity(
        "sums", source_of("sums", num_tasks=2), "a"
    )


def test_a_buffer_with_credentials_asks_its_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(PreconditionFailed, match=f"in the buffer, which .*{AGENTS_VARIABLE}=true"):
        source_of("sums")
    monkeypatch.setenv(AGENTS_VARIABLE, "true")
    assert source_of("sums").kind == "environment"


def test_a_missing_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HUBS_VARIABLE, "/nowhere")
    with pytest.raises(PreconditionFailed, match=r"taskset sums: .*`trinity setup hub verifiers`"):
        source_of("sums")
