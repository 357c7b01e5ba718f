"""Files as Trinity-RFT's guides have them pass the check; what they need beyond it is planned."""

import subprocess
from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from trinity.config.check import check_file
from trinity.config.schema.base import KeyStatus

GUIDE = sorted((Path(__file__).parent / "guide").glob("*.yaml"))
ROOT = Path(__file__).parents[3]
OURS = sorted((ROOT / "examples").rglob("*.yaml"))


@pytest.mark.parametrize("file", GUIDE, ids=lambda file: file.name)
def test_a_guides_file_has_no_mistake(file: Path) -> None:
    report = check_file(file)
    assert report.errors == ()
    assert report.reading
    assert report.plan


def test_every_yaml_file_of_the_repository_is_looked_at() -> None:
    """Those of other programs have none of a configuration's sections."""
    listed = subprocess.run(["git", "ls-files", "*.y*ml"], cwd=ROOT, capture_output=True, text=True)
    files = {ROOT / name for name in listed.stdout.split()} or {*OURS, *GUIDE}
    sections = ("model:", "buffer:", "stages:", "algorithm:")
    ours = {one for one in files if any(key in one.read_text().splitlines() for key in sections)}
    recorded = {one for one in ours if "golden" in one.parts}  # bases of mutations
    assert ours - recorded <= {*OURS, *GUIDE}


@as_subtests("file", OURS)
def test_our_own_files_act_as_they_are_written(file: Path) -> None:
    report = check_file(file)
    assert report.errors == ()
    assert report.notices == ()
    assert report.plan


def test_verls_own_section_is_spoken_of_key_by_key() -> None:
    report = check_file(Path(__file__).parent / "guide/verl.yaml")
    assert report.reading
    config = report.reading.config
    assert config
    assert config.trainer.max_token_len_per_gpu == 16384
    assert config.trainer.use_remove_padding
    assert config.trainer.max_checkpoints_to_keep == 5
    assert config.trainer.enable_gradient_checkpointing
    assert report.reading.planned == ()
    assert all(one.status is not KeyStatus.ACTS for one in report.notices)
