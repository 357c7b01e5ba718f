"""The commands that look into a run: it has ended, and is opened to be looked into."""

import json
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.integration.looking.conftest import Trinity, ended_run
from tests.model_free.stack import model_free_stack

pytestmark = pytest.mark.timeout(300)


async def test_a_run_that_has_ended_is_opened_looked_into_and_closed(
    trinity: Trinity, tmp_path: Path
) -> None:
    plan = await ended_run(tmp_path)
    job = plan.job_path
    code, out, err = trinity("lineage", "5", job_dir=job)
    assert (code, err) == (0, f"{job} has stopped: opening it to look\n")
    assert out.splitlines()[0] == "step 5 of stage rft: 8 rows, trainer 1"
    assert out.splitlines()[1].startswith("weights version 4 (")
    assert len(out.splitlines()) == 3 + 8
    assert not (job / "run.json").exists()
    async with model_free_stack(job):
        listed = _json_lines(trinity, "view", "step=5", "--json", job_dir=job)
        moved = _json_lines(trinity, "lineage", "5", "--json", job_dir=job)
        assert [row["place"] for row in moved] == list(range(8))
        assert {row["id"] for row in moved} == {row["id"] for row in listed}
        _check_view(trinity, job, listed[0])
        _check_export(trinity, tmp_path, job)
        _check_taking_out(trinity, job)
        _check_mistakes(trinity, tmp_path, job)


def _json_lines(trinity: Trinity, *words: str, job_dir: Path) -> list[dict[str, object]]:
    code, out, err = trinity(*words, job_dir=job_dir)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def _check_view(trinity: Trinity, job: Path, sample: dict[str, object]) -> None:
    code, out, _ = trinity("view", "-n", "3", job_dir=job)
    assert code == 0
    assert out.splitlines()[0] == "stage rft (finished): 64 batched"
    assert out.splitlines()[-1].startswith("only 3 are shown")
    _, out, _ = trinity("view", str(sample["id"])[:10], job_dir=job)
    assert str(sample["id"]) in out
    assert "log-probability" in out
    _, out, _ = trinity("view", "reward=99..", job_dir=job)
    assert "no sample satisfies these conditions" in out


def _check_export(trinity: Trinity, folder: Path, job: Path) -> None:
    file, directory = folder / "all.parquet", folder / "step"
    code, out, _ = trinity("export", str(file), job_dir=job)
    assert (code, out) == (0, f"64 samples in {file}\n")
    table = pyarrow.parquet.read_table(file)
    assert sorted(set(table["train_step"].to_pylist())) == list(range(1, 9))
    code, out, _ = trinity("export", str(directory), "step=5", job_dir=job)
    assert (code, out) == (0, f"8 samples in {directory}\n")
    assert (directory / "dataset_info.json").exists()
    code, _, err = trinity("export", str(file), job_dir=job)
    assert (code, err) == (2, f"error: {file} exists: give another path, or remove it\n")


def _check_taking_out(trinity: Trinity, job: Path) -> None:
    why = ("--reason", "a test")
    code, out, _ = trinity("exclude", "step=5", *why, job_dir=job)
    assert (code, out.splitlines()[1]) == (0, "8 further ones are in a batch and stay there")
    code, _, err = trinity("delete", "step=5", *why, "--yes", job_dir=job)
    assert code == 1
    assert "8 of these samples are in the batch of step 5, which may be trained again" in err
    code, out, _ = trinity("delete", "step=2", *why, job_dir=job)
    assert (code, out) == (0, "8 samples would be deleted: add --yes to do it\n")
    code, out, _ = trinity("delete", "step=2", *why, "--yes", job_dir=job)
    assert (code, out[:14]) == (0, "8 samples with")


def _check_mistakes(trinity: Trinity, folder: Path, job: Path) -> None:
    for words, said in (
        (("view", "rewrad=1"), "there is no condition 'rewrad': did you mean `reward`?"),
        (("view", "--stage", "rtf"), "has no stage 'rtf': did you mean `rft`?"),
        (("view", "--limit", "0"), "--limit 0 shows every sample: add --json"),
    ):
        code, _, err = trinity(*words, job_dir=job)
        assert code == 2
        assert said in err
    code, _, err = trinity("view", job_dir=folder)
    assert (code, err) == (
        2,
        f"error: {folder} holds no run: give its --config or its --job-dir\n",
    )
    for words, said in (
        (("view", "ffffffff"), "holds no sample ffffffff"),
        (("lineage", "9"), "step 9 of stage rft has no batch; the newest that has one is 8"),
    ):
        code, _, err = trinity(*words, job_dir=job)
        assert code == 1
        assert said in err
