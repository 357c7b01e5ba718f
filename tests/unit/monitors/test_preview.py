"""Tables of samples for monitors: what is read of an evaluation, and what each monitor shows."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from tests.unit.config.builders import config
from tests.unit.monitors.builders import EXPERIMENT, points_of, setting
from tests.unit.progress.builders import evaluated, trained
from trinity.api.v1 import buffer_pb2, experience_pb2, query_pb2
from trinity.api.v1.query_pb2_grpc import QueryServiceStub
from trinity.config.planning import plan_experiment
from trinity.run.monitors.mlflow import MAX_TAG_CHARS, TABLES_TAG, MlflowMonitor, _with_table
from trinity.run.monitors.points import MetricPoint
from trinity.run.monitors.preview import (
    COLUMNS,
    MAX_TEXT_CHARS,
    PreviewReader,
    SampleTable,
    preview_reader,
)
from trinity.run.monitors.tensorboard import TensorBoardMonitor
from trinity.run.monitors.wandb import WandbMonitor

NAME = "eval/held_out/samples"
LONG = "x" * (MAX_TEXT_CHARS + 5)
MARKED = "# big | <b>4</b>\nand more"
TABLE = SampleTable(
    name=NAME, rows=((2, 7, 0, 1.0, "2+2=", MARKED, ""), (2, 8, 1, None, "3+3=", "", ""))
)


class Queries:
    """Gives two stored samples, or refuses."""

    def __init__(self, refusal: grpc.StatusCode | None = None) -> None:
        self.requests: list[query_pb2.ListExperiencesRequest] = []
        self._refusal = refusal

    async def ListExperiences(
        self, request: query_pb2.ListExperiencesRequest, **_: object
    ) -> AsyncIterator[query_pb2.ListExperiencesResponse]:
        self.requests.append(request)
        if self._refusal is not None:
            raise grpc.aio.AioRpcError(
                self._refusal, grpc.aio.Metadata(), grpc.aio.Metadata(), "no right"
            )
        for index, reward in ((7, 1.0), (8, None)):
            text = experience_pb2.Sequence(prompt_text="2+2=", response_text=LONG)
            record = query_pb2.ExperienceRecord(task_index=index, reward=reward)
            record.content.sequence.CopyFrom(text)
            record.content.blobs.add(sha256=b"\xaa" * 32, size=1234, media_type="image/png")
            yield query_pb2.ListExperiencesResponse(experiences=[record])


def reader(queries: Queries, said: list[str]) -> PreviewReader:
    return PreviewReader(
        queries=cast(QueryServiceStub, queries),
        experiment_id=EXPERIMENT,
        tenant="default",
        stages=frozenset(["rft"]),
        say=said.append,
    )


async def test_the_samples_of_an_evaluation_are_read_once_it_is_complete() -> None:
    queries = Queries()
    table = await reader(queries, []).table_of(evaluated(12, 2, 0.9))
    assert table is not None
    assert table.name == NAME
    version, index, run, reward, prompt, response, images = table.rows[0]
    assert images == f"image/png, 1,234 bytes, {12 * 'a'}"
    assert (version, index, run, reward, prompt) == (2, 7, 0, 1.0, "2+2=")
    assert str(response).endswith("... (5 more characters)")
    assert table.rows[1][3] is None
    wanted = queries.requests[0].filter
    assert wanted.kind == buffer_pb2.ASSIGNMENT_KIND_EVAL
    assert (wanted.taskset, wanted.version_min, wanted.version_max) == ("held_out", 2, 2)


async def test_other_events_and_other_stages_ask_nothing() -> None:
    queries = Queries()
    other = evaluated(12, 2, 0.9)
    other.stage = "sft"
    for event in (trained(3, "rft", 1), other):
        assert await reader(queries, []).table_of(event) is None
    assert queries.requests == []


async def test_a_table_that_is_refused_is_said_once_and_left_out() -> None:
    said: list[str] = []
    refused = reader(Queries(grpc.StatusCode.PERMISSION_DENIED), said)
    for version in (1, 2):
        assert await refused.table_of(evaluated(version, version, 0.5)) is None
    assert said == [
        "the monitor gets no table of samples, as the buffer does not give them: no right"
    ]


@pytest.mark.parametrize("wants", [True, False])
def test_the_key_decides(*, wants: bool) -> None:
    plan = plan_experiment(config(trainer={"enable_preview": wants}))
    made = preview_reader(plan, "e", cast(QueryServiceStub, Queries()), print)
    assert (made is not None) == wants


def point() -> MetricPoint:
    return replace(points_of([evaluated(12, 2, 0.9)])[0], table=TABLE)


def test_tensorboard_shows_it_as_texts_that_are_no_markdown(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    TensorBoardMonitor(setting(tmp_path)).write_points([point()])
    read = EventAccumulator(str(tmp_path / "tensorboard/first/rft_explorer")).Reload()
    assert read.SummaryMetadata(NAME).plugin_data.plugin_name == "text"
    (shown,) = read.Tensors(NAME)
    cells = make_ndarray(shown.tensor_proto)
    assert cells.shape == (3, len(COLUMNS))
    assert shown.step == 2
    assert cells[1][5].decode() == "    # big | <b>4</b>\n    and more"


def test_wandb_gets_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    logged: list[dict[str, Any]] = []

    class Run:
        offline = True

        def log(self, shown: dict[str, Any], **_: object) -> None:
            logged.append(shown)

    monkeypatch.setattr(WandbMonitor, "_run", lambda *_: Run())
    WandbMonitor(setting(tmp_path)).write_points([point()])
    assert logged[0][NAME].columns == list(COLUMNS)
    assert logged[0][NAME].data == [list(row) for row in TABLE.rows]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_file_for_each_version_that_it_shows_as_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)  # where it keeps files
    monitor = MlflowMonitor(setting(tmp_path, uri=f"sqlite:///{tmp_path}/mlflow.db"))
    for _ in range(2):  # as after an answer that was lost
        monitor.write_points([point()])
        run = monitor._runs[point().series]
        run.last_event = 0
    run_id = run.run_id
    client = monitor._connect_once()
    path = f"{NAME}/version_2.json"
    tables = json.loads(client.get_run(run_id).data.tags[TABLES_TAG])
    assert tables == [{"path": path, "type": "table"}]
    stored = json.loads(Path(client.download_artifacts(run_id, path, str(tmp_path))).read_text())
    assert stored["columns"] == list(COLUMNS)
    assert stored["data"][1] == [2, 8, 1, None, "3+3=", "", ""]


def test_the_tag_of_mlflow_names_the_newest_tables_that_it_has_room_for() -> None:
    told = "[]"
    for version in range(200):
        told = _with_table(told, f"{NAME}/version_{version}.json")
        assert len(told) <= MAX_TAG_CHARS
    tables = json.loads(told)
    assert tables[-1] == {"path": f"{NAME}/version_199.json", "type": "table"}
    assert len(tables) > 50
    again = json.loads(_with_table(told, f"{NAME}/version_199.json"))
    assert again == tables
