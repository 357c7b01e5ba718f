"""A new life takes the newest whole checkpoint, no matter how many ranks wrote it."""

from pathlib import Path

import pytest

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
