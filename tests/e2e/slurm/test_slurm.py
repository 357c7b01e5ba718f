"""Jobs of `trinity deploy render --target slurm`: they end, are cancelled, and go on elsewhere."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.e2e.slurm.cluster import Cluster, running_cluster, until, what_is_missing
from tests.support.model_free.experiment import experiment_values
from trinity.config.schema.experiment import deep_merge
from trinity.run.local.reaper import job_environment
from trinity.weights.stored import newest_model

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing()),
]

STEPS = 40
NUM_NODES = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with (
        tempfile.TemporaryDirectory(prefix="trinity-slurm-", dir="/tmp") as folder,
        running_cluster(Path(folder), NUM_NODES) as cluster,
    ):
        yield cluster


def rendered(cluster: Cluster, name: str, *options: str) -> Path:
    """The script of an experiment in a folder of its own."""
    folder = cluster.root / name
    folder.mkdir()
    folder.chmod(0o777)
    values = deep_merge(
        experiment_values(folder, name=name),
        {"buffer": {"total_steps": STEPS}, "monitor": {"monitor_type": "none"}},
    )
    for looked_for in ("tokenizer.json", "chat_template.jinja"):  # that they are there, no more
        (folder / "model" / looked_for).write_text("{}")
    file = folder / "my.yaml"
    file.write_text(yaml.safe_dump(values))
    program = cluster.root / "environment" / "bin" / "trinity"
    cluster.said(
        *(str(program), "deploy", "render", "-c", str(file), "--target", "slurm"),
        *("-o", str(folder / "job"), *options),
    )
    return folder / "job" / "job.sbatch"


def run_folder(script: Path) -> Path:
    name = script.parents[1].name
    return script.parents[1] / "checkpoints" / "model-free" / name
