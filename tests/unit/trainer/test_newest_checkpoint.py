"""A new life takes the newest whole checkpoint, no matter how many ranks wrote it."""

from functools import partial
from pathlib import Path

import pytest

from tests.unit.config.builders import stage
from tests.unit.subtests import as_subtests
from trinity.api.v1 import buffer_pb2
from trinity.weights.manifest import ManifestHead, seal

STATE = "state.json"


def written(root: Path, step: int, num_ranks: int = 2) -> buffer_pb2.Checkpoint:
    """A committed checkpoint."""
    directory = root / f"step-{step}-1"
    directory.mkdir()
    (directory / STATE).write_text("x")
    head = ManifestHead(
        kind="checkpoint",
        stage="rft",
        step=step,
        incarnation=1,
        weights_sha256="0" * 64,
        num_ranks=num_ranks,
    )
    return buffer_pb2.Checkpoint(
        step=step, incarnation=1, path=str(directory), manifest_sha256=seal(directory, head)
    )


def chosen(rows: list[buffer_pb2.Checkpoint], num_ranks: int) -> int:
    from services.trainer.rank.incarnation import _newest_intact

    return _newest_intact(rows, num_ranks)


def test_the_newest_is_taken_by_any_number_of_ranks(tmp_path: Path) -> None:
    rows = [written(tmp_path, step) for step in (2, 1)]
    assert [chosen(rows, ranks) for ranks in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize("damage", [Path.unlink, lambda file: file.write_text("y")])
def test_a_half_written_one_is_never_taken(tmp_path: Path, damage: object) -> None:
    rows = [written(tmp_path, step) for step in (2, 1)]
    assert callable(damage)
    damage(Path(rows[0].path) / STATE)
    assert [chosen(rows, ranks) for ranks in (1, 2, 3)] == [1, 1, 1]


@as_subtests(
    ("offset", "is_there", "begins"),
    [
        (0, True, 6),
        (0, False, 3),  # only from there on can the version that explorers need be made again
        (1, False, 6),  # newer weights will do
    ],
)
def test_a_life_begins_where_the_version_that_is_due_can_come_from(
    tmp_path_factory: pytest.TempPathFactory, offset: int, is_there: bool, begins: int
) -> None:
    from services.trainer.clients import TrainerBufferClient
    from services.trainer.collectives import Ranks
    from services.trainer.rank.incarnation import begin_incarnation, latest_start
    from services.trainer.types import WeightsOnDisk

    root = tmp_path_factory.mktemp("checkpoints")
    rows = [written(root, step) for step in (6, 3)]
    answer = buffer_pb2.BeginIncarnationResponse(incarnation=2, checkpoints=rows, recorded_step=7)

    class Buffer(TrainerBufferClient):
        def __init__(self) -> None:
            """Calls no service."""

        def begin_incarnation(self, trainer_id: str) -> buffer_pb2.BeginIncarnationResponse:
            return answer

    plan = stage(synchronizer={"sync_interval": 4, "sync_offset": offset})

    due = WeightsOnDisk(
        version=4, incarnation=1, path=root, manifest_sha256=b"", weights_sha256=b"", parent=0
    )
    last = partial(latest_start, plan, lambda version: {4: due if is_there else None}[version])
    life = begin_incarnation(Buffer(), "", Ranks(rank=0, num_ranks=1), latest_start=last)
    assert life.step == begins
