"""Jobs of `trinity deploy render --target slurm`: they end, are cancelled, and go on elsewhere."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.e2e.slurm.cluster import ADDRESSES, Cluster, running_cluster, until
from tests.support.model_free.experiment import experiment_values
from tests.unit.sizing.test_plan_command import QWEN
from trinity.config.schema.experiment import deep_merge
from trinity.weights.stored import newest_model

pytestmark = pytest.mark.timeout(2400)

STEPS, MIDDLE = 16, 4


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="trinity-slurm-") as folder,
        running_cluster(Path(folder)) as cluster,
    ):
        yield cluster


def rendered(cluster: Cluster, name: str, *words: str) -> Path:
    """The script of an experiment, in a folder of its own."""
    folder = cluster.root / name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    changes = {"buffer": {"total_steps": STEPS}, "monitor": {"monitor_type": "none"}}
    file = folder / "my.yaml"
    file.write_text(yaml.safe_dump(deep_merge(experiment_values(folder, name=name), changes)))
    for looked_for in ("tokenizer.json", "chat_template.jinja"):  # that they are there, no more
        (folder / "model" / looked_for).write_text("{}")
    (folder / "job").mkdir(mode=0o777)
    (folder / "job").chmod(0o777)
    (folder / "job" / ".trinity").touch()
    (folder / "described.json").write_text(json.dumps(QWEN))  # ours has no layers
    values = {"environment": str(cluster.root / "environment")}
    (folder / "job" / "values.yaml").write_text(yaml.safe_dump(values))
    command = ("deploy", "render", "-c", str(file), "--target", "slurm", "-o", str(folder / "job"))
    sizes = ("--model-config", str(folder / "described.json"))
    cluster.said(str(cluster.program), *command, *sizes, *words)
    return folder / "job" / "job.sbatch"


def directory_of(script: Path) -> Path:
    name = script.parents[1].name
    return script.parents[1] / "checkpoints" / "model-free" / name


def is_in_the_middle(script: Path) -> bool:
    model = newest_model(directory_of(script), "rft")
    return model is not None and model.version >= MIDDLE


def weights(script: Path) -> str:
    """The hash of the weights that a finished run has left."""
    model = newest_model(directory_of(script), "rft")
    assert model is not None
    assert model.version == STEPS
    sha256: str = json.loads((model.path / "manifest.json").read_text())["weights_blake3"]
    return sha256


def finished(cluster: Cluster, job: str, script: Path) -> str:
    """The weights of a job's run, once the job has ended well."""
    ended = cluster.ended(job)
    log = (script.parent / f"{job}.log").read_text()
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), log
    return weights(script)


@pytest.fixture(scope="module")
def calm(cluster: Cluster) -> str:
    """The weights of a job that nothing disturbs."""
    script = rendered(cluster, "calm")
    return finished(cluster, cluster.submit(script), script)


def test_a_job_that_is_requeued_in_the_middle_goes_on_to_the_same_weights(
    cluster: Cluster, calm: str
) -> None:
    script = rendered(cluster, "requeued")
    job = cluster.submit(script)
    until(lambda: is_in_the_middle(script), "a few steps")
    cluster.requeue(job)
    assert finished(cluster, job, script) == calm
    log = (script.parent / f"{job}.log").read_text()
    assert "is saved as a checkpoint" in log, "the step in hand was not waited for"
    assert "restart 1" in log
    starts = json.loads((directory_of(script) / "summary.json").read_text())["starts"]
    assert starts == 2


def test_two_nodes_have_certificates_of_their_own_and_end_in_the_same_weights(
    cluster: Cluster, calm: str
) -> None:
    script = rendered(cluster, "two", "--explorers", "2")
    job = cluster.submit(script)
    until(lambda: is_in_the_middle(script), "a few steps")
    running = json.loads((directory_of(script) / "run.json").read_text())
    assert running["addresses"]["buffer"].startswith(f"{ADDRESSES[0]}:")
    assert running["addresses"]["nats_url"].startswith(f"tls://{ADDRESSES[0]}:")
    looked = ("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1")
    status = cluster.said(*looked, str(cluster.program), "status", str(directory_of(script)))
    assert "model-free/two" in status
    cluster.requeue(job)
    assert finished(cluster, job, script) == calm
    folder = directory_of(script)
    assert f"serving address={ADDRESSES[1]}" in (folder / "log" / "n2" / "explorer.log").read_text()
    assert "letters are counted" in (folder / "log" / "n2" / "explorer_runner_0.log").read_text()
    secrets = [path for path in (folder / "infra" / "security").rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in secrets} == {0o600}


def test_a_gang_has_a_node_for_each_of_its_ranks_and_the_engine_another(
    cluster: Cluster, calm: str
) -> None:
    gang = ("cluster.node_num=3", "cluster.gpu_per_node=1", "trainer.rank_num=2")
    script = rendered(cluster, "gang", *gang)
    assert finished(cluster, cluster.submit(script), script) == calm
    logs = directory_of(script) / "log"
    assert (logs / "n3" / "explorer.log").exists()
    assert "incarnation=1" in (logs / "n2" / "trainer.log").read_text(), "it has no rank"


def test_a_cancelled_job_leaves_nothing_and_can_be_submitted_again(
    cluster: Cluster, calm: str
) -> None:
    script = rendered(cluster, "cancelled", "--explorers", "2")
    job = cluster.submit(script)
    until(lambda: is_in_the_middle(script), "a few steps")
    assert processes_of(script), "nothing to look for"
    cluster.said("scancel", job)
    assert cluster.ended(job)["JobState"] == "CANCELLED"
    until(lambda: not processes_of(script), "no process of the run")
    assert not (directory_of(script) / "run.json").exists(), "it was not stopped in order"
    assert finished(cluster, cluster.submit(script), script) == calm


def processes_of(script: Path) -> list[psutil.Process]:
    """The processes that name the run's folder in their command or environment."""
    folder = str(script.parents[1])
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if folder in str(process.info)
    ]


def test_the_exit_code_of_a_job_is_that_of_the_run(cluster: Cluster) -> None:
    script = rendered(cluster, "wrong")
    (script.parents[1] / "my.yaml").write_text("name: 1")
    assert cluster.ended(cluster.submit(script))["ExitCode"] == "2:0"


def test_a_job_with_too_few_nodes_says_so(cluster: Cluster) -> None:
    script = rendered(cluster, "few", "--explorers", "2")
    job = cluster.submit(script, "--nodes=1")
    assert cluster.ended(job)["ExitCode"] == "2:0"
    log = (script.parent / f"{job}.log").read_text()
    assert "the job has 1 nodes, and this run needs 2" in log
