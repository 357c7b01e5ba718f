"""What a restored database does not know is kept; what a killed writer left is not."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.subtests import as_subtests
from trinity.weights.manifest import ManifestHead, seal

if TYPE_CHECKING:
    from services.trainer.types import WeightsOnDisk


def made(stage: Path, name: str, *, step: int = 1, incarnation: int = 1) -> None:
    folder = stage / name
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(name)
    head = ManifestHead(
        kind="weights",
        stage="rft",
        step=step,
        incarnation=incarnation,
        weights_sha256="0" * 64,
    )
    seal(folder, head)


def weights(path: Path) -> "WeightsOnDisk":
    from services.trainer.types import WeightsOnDisk

    return WeightsOnDisk(
        version=4, incarnation=1, path=path, manifest_sha256=b"", weights_sha256=b"", parent=-1
    )


@as_subtests(
    ("life", "restored", "moved"),
    [
        (4, 0, []),  # no restore: earlier lives left garbage, if anything
        (101, 100, ["best", "step-6-2", "v5-1-1", "v6-2"]),
        (2, 0, ["best", "step-6-2", "v6-2"]),  # a new database: its first lives come again
    ],
)
def test_unknown_files_of_lost_lives_are_set_aside(
    tmp_path_factory: pytest.TempPathFactory, life: int, restored: int, moved: list[str]
) -> None:
    from services.trainer.checkpoints.set_aside import LostFiles

    stage = tmp_path_factory.mktemp("stage")
    for name in ("weights/v4-1", "weights/v5-1-1", "weights/v6-2", "checkpoints/step-3-1"):
        made(stage, name)
    made(stage, "checkpoints/step-6-2")
    made(stage, "best", step=6, incarnation=2)
    (stage / "weights" / "v7-2.tmp").mkdir()
    lost = LostFiles(stage=stage, incarnation=life, restored=restored)
    lost.move_unknown(
        [stage / "checkpoints" / "step-3-1"], lambda: [weights(stage / "weights/v4-1")]
    )
    assert sorted(path.name for path in stage.glob(f"set-aside/{life}/*")) == moved
    for name in moved:
        assert (stage / "set-aside" / str(life) / name / "manifest.json").is_file()
    assert (stage / "weights" / "v7-2.tmp").is_dir()


def test_the_best_version_that_is_known_stays(tmp_path: Path) -> None:
    from services.trainer.checkpoints.set_aside import LostFiles

    made(tmp_path, "best", step=4, incarnation=1)
    lost = LostFiles(stage=tmp_path, incarnation=101, restored=100)
    lost.move_unknown([], lambda: [weights(tmp_path / "weights" / "v4-1")])
    assert (tmp_path / "best").is_dir()
