"""The commands that look into a run: it has ended, and is opened to be looked into."""

import json
import shutil
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.integration.inspect.conftest import trinity
from tests.support.model_free.ended_run import EndedRun
from tests.support.model_free.stack import model_free_stack
from trinity.errors import NotFound, UserError
from trinity.run.local.given_run import TRUSTED_VARIABLE

pytestmark = pytest.mark.timeout(400)


async def test_a_run_that_has_ended_is_opened_looked_into_and_closed(
    ended_run: EndedRun, tmp_path: Path
) -> None:
    job = tmp_path / "runs" / "job"
    shutil.copytree(ended_run.untouched, job)
    out, said, error = await trinity("lineage", "5", job_dir=job)
    assert (said, error) == (f"{job} has stopped: opening it\n", None)
    assert out.splitlines()[0] == "step 5 of stage rft: 8 rows, trainer 1"
    assert out.splitlines()[1].startswith("weights version 4 (")
    assert len(out.splitlines()) == 3 + 8
    out, said, error = await trinity("taskset", "list", job_dir=job)
    assert (said, error) == (f"{job} has stopped: opening it\n", None)
    assert out.splitlines()[3].split()[2:6] == ["│", "64", "│", "complete"]
    assert not (job / "run.json").exists()
    async with model_free_stack(job):
        await _check_view(job)
        await _check_population(job)
        await _check_export(tmp_path, job)
        await _check_taking_out(job)
        await _check_mistakes(job)


async def test_a_run_of_others_is_looked_into_as_a_copy_and_not_changed(
    ended_run: EndedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TRUSTED_VARIABLE)
    job = tmp_path / "job"
    shutil.copytree(ended_run.untouched, job)
    before = sorted(path.relative_to(job) for path in job.rglob("*"))
    out, said, error = await trinity("view", "step=5", "-n", "3", job_dir=job)
    assert error is None
    assert said.endswith(f"{job} was not made here: a copy of its database is opened in a box\n")
    assert out.splitlines()[0] == "stage rft (finished): 64 batched"
    out, _, error = await trinity("taskset", "list", job_dir=job)
    assert error is None
    listed = out.splitlines()[3].split("│")
    assert [cell.strip() for cell in listed[2:4]] == ["64", "complete"]
    assert sorted(path.relative_to(job) for path in job.rglob("*")) == before
    for words in (
        ("exclude", "step=5", "--yes", "--reason", "bad"),
        ("taskset", "delete", listed[1].strip()),
    ):
        _, _, error = await trinity(*words, job_dir=job)
        assert isinstance(error, UserError)
        wanted = f"change it only if you know where it is from, with {TRUSTED_VARIABLE}="
        assert wanted in str(error)


async def _json_lines(*words: str, job_dir: Path) -> list[dict[str, object]]:
    out, said, error = await trinity(*words, "--json", job_dir=job_dir)
    assert (said, error) == ("", None)
    return [json.loads(line) for line in out.splitlines()]


async def _check_view(job: Path) -> None:
    listed = await _json_lines("view", "step=5", job_dir=job)
    moved = await _json_lines("lineage", "5", job_dir=job)
    assert [row["place"] for row in moved] == list(range(8))
    assert {row["id"] for row in moved} == {row["id"] for row in listed}
    out, _, _ = await trinity("view", "-n", "3", job_dir=job)
    assert out.splitlines()[0] == "stage rft (finished): 64 batched"
    assert out.splitlines()[-1].startswith("only 3 are shown")
    sample = str(listed[0]["id"])
    out, _, _ = await trinity("view", sample[:10], job_dir=job)
    assert sample in out
    assert "log-probability" in out
    best = await _json_lines("view", "--sort", "reward", "-n", "5", job_dir=job)
    rewards = [
        float(str(row["reward"])) for row in await _json_lines("view", "-n", "0", job_dir=job)
    ]
    assert [row["reward"] for row in best] == sorted(rewards, reverse=True)[:5]
    worst = await _json_lines("view", "step=5", "--sort", "reward", "--lowest", job_dir=job)
    assert len(worst) == 8 and worst[0]["reward"] == min(
        float(str(row["reward"])) for row in listed
    )
    out, _, _ = await trinity("view", "reward=99..", job_dir=job)
    assert "no sample satisfies these conditions" in out


async def _check_population(job: Path) -> None:
    out, _, error = await trinity("view", "--population", job_dir=job)
    assert error is None
    steps = "rft, explore steps 1 to 8: 64 runs gave 64 samples, 64 of them were trained on"
    assert out.splitlines()[0] == steps
    assert "response length" in out
    assert "more than chance" not in out
    _, _, error = await trinity("view", "step=1", "--population", job_dir=job)
    assert isinstance(error, UserError)


async def _check_export(folder: Path, job: Path) -> None:
    file, directory = folder / "all.parquet", folder / "step"
    out, _, _ = await trinity("export", str(file), job_dir=job)
    assert out.startswith(f"64 samples in {file}\nnewest model  {job}/stages/rft/weights/v8-")
    table = pyarrow.parquet.read_table(file)
    assert sorted(set(table["train_step"].to_pylist())) == list(range(1, 9))
    out, _, _ = await trinity("export", str(directory), "step=5", job_dir=job)
    assert out.startswith(f"8 samples in {directory}\n")
    assert (directory / "dataset_info.json").exists()
    both = folder / "both.parquet"
    out, _, _ = await trinity("export", str(both), "step=7..8", job_dir=job)
    assert out.startswith(f"16 samples in {both}\n")
    assert set(pyarrow.parquet.read_table(both)["train_step"].to_pylist()) == {7, 8}
    _, _, error = await trinity("export", str(file), job_dir=job)
    assert isinstance(error, UserError)
    assert str(error) == f"{file} exists: give another path, or remove it"


async def _check_taking_out(job: Path) -> None:
    why = ("--reason", "a test")
    out, _, _ = await trinity("exclude", "step=5", *why, job_dir=job)
    assert out.splitlines()[1] == (
        "8 further samples are in a batch: they stay there, and enter no further batch"
    )
    for step in ("step=5", "step=2"):
        out, _, _ = await trinity("delete", step, *why, job_dir=job)
        assert out == "8 samples would be deleted: add --yes to do it\n"
        out, _, _ = await trinity("delete", step, *why, "--yes", job_dir=job)
        assert out.startswith("8 samples with")


async def _check_mistakes(job: Path) -> None:
    for words, kind, said in (
        (["view", "rewrad=1"], UserError, "no condition 'rewrad': did you mean `reward`?"),
        (["view", "--stage", "rtf"], UserError, "has no stage 'rtf': did you mean `rft`?"),
        (["view", "--lowest"], UserError, "--lowest says where --sort begins"),
        (["view", "--limit", "0"], UserError, "--limit 0 shows every sample: add --json"),
        (["view", "ffffffff"], NotFound, "holds no sample ffffffff"),
        (["lineage", "9"], NotFound, "step 9 of stage rft has no batch; the newest that has"),
    ):
        _, _, error = await trinity(*words, job_dir=job)
        assert isinstance(error, kind)
        assert said in str(error)
    _, _, error = await trinity("view", job_dir=job.parent)
    assert str(error) == f"{job.parent} holds no run: give its --config or its --job-dir"
    _, _, error = await trinity("taskset", "list", job_dir=job.parent)
    assert str(error).startswith(f"no run is going on in {job.parent}: none was started there")
