"""The batch script of an experiment: what it asks SLURM for, and what it starts."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.deploy.manifests import deployment_of
from tests.unit.deploy.test_gpus import deployment, engines, of_four_machines, on_two_machines
from tests.unit.deploy.test_values import sized
from tests.unit.sizing.test_services import LLAMA_70B
from tests.unit.subtests import as_subtests
from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.nodes import node_parts
from trinity.run.deploy.slurm import SlurmJob
from trinity.run.deploy.values import read_values


def four_ranks(explorers: int) -> ExperimentDeployment:
    return deployment(explorers, explorer=engines(4), trainer={"rank_num": 4})


CASES: dict[str, tuple[Callable[[], ExperimentDeployment], int, int]] = {
    "without GPUs": (lambda: deployment_of("addition"), 1, 0),
    "explorers without GPUs": (lambda: deployment(3, cluster={"gpu_per_node": 0}), 3, 0),
    "engine and ranks fit on a node": (lambda: four_ranks(1), 1, 8),
    "other explorers have nodes of their own": (lambda: four_ranks(3), 3, 8),
    "engines on one node, a gang on three": (of_four_machines, 4, 8),
    "an engine over two nodes": (on_two_machines, 3, 8),
    "by turns": (lambda: deployment(mode="colocate", cluster={"gpu_per_node": 1}), 1, 1),
}


def script_of(one: ExperimentDeployment, folder: Path, *words: str) -> tuple[dict[str, str], str]:
    """The directives of a script, and its last line."""
    job = SlurmJob(deployment=one, file=Path("my run.yaml"), overrides=words, output=folder)
    assert shlex.split(job.write_script()) == ["sbatch", f"{folder}/job.sbatch"]
    subprocess.run(["bash", "-n", folder / "job.sbatch"], check=True)
    lines = (folder / "job.sbatch").read_text().splitlines()
    given = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in given)}, lines[-1]


@as_subtests("case", CASES)
def test_a_job_has_the_nodes_and_gpus_of_its_plan(tmp_path: Path, case: str) -> None:
    made, nodes, gpus = CASES[case]
    asked, command = script_of(made(), tmp_path / "job")
    assert asked["nodes"] == str(nodes)
    assert asked.get("gres", "gpu:0") == f"gpu:{gpus}"
    assert (f"--explorers {made().explorers}" in command) == (nodes > 1)


def test_a_job_starts_what_was_rendered_and_may_start_again(tmp_path: Path) -> None:
    asked, command = script_of(deployment(), tmp_path / "100% mine", "seed=3", "name=it's")
    assert shlex.split(command) == [
        *("exec", f"{sys.prefix}/bin/trinity", "run", "--config", "my run.yaml"),
        *("seed=3", "name=it's"),
    ]
    assert shlex.split(asked["chdir"]) == [str(Path.cwd())], "paths of the file mean the same"
    assert shlex.split(asked["output"]) == [f"{tmp_path}/100%% mine/%j.log"]
    assert {"requeue", "open-mode", "signal"} <= set(asked)


def test_a_job_has_what_its_largest_node_takes(tmp_path: Path) -> None:
    large = sized(tmp_path, LLAMA_70B, trainer={"optimizer_offload": True})
    assert [len(parts) for parts in node_parts(large)] == [1, 1], "a node each"
    asked, _ = script_of(large, tmp_path / "job")
    sizes = [large.sizes(name) for name in ("trainer", "buffer", "synchronizer")]
    memory = sum(size["memory"] for size in sizes) + 2 * 2**30
    assert int(asked["mem"].removesuffix("M")) == memory // 2**20
    assert int(asked["cpus-per-task"]) == sum(size["cpus"] for size in sizes) + 1
    assert "exclusive" not in asked


def test_values_win_and_what_is_not_known_takes_whole_nodes(tmp_path: Path) -> None:
    unknown = deployment()
    asked, _ = script_of(unknown, tmp_path / "job")
    assert asked["mem"] == "0"
    assert "exclusive" in asked
    values = tmp_path / "job" / "values.yaml"
    large = "{memory: 100Gi, cpus: 10}"
    values.write_text(
        f"environment: /shared/env\nservices: {{trainer: {large}, explorer: {large}}}"
    )
    given = replace(unknown, values=read_values(tmp_path / "job"))
    asked, command = script_of(given, tmp_path / "job")
    assert int(asked["mem"].removesuffix("M")) > 200 * 2**10
    assert command.startswith("exec /shared/env/bin/trinity ")
    assert not list(SlurmJob(deployment=given, file=values, overrides=(), output=tmp_path).notes())


def test_several_explorers_by_turns_are_refused(tmp_path: Path) -> None:
    by_turns = deployment(2, mode="colocate", cluster={"gpu_per_node": 1})
    with pytest.raises(UserError, match=r"`mode: colocate`.*give 1 as `--explorers`, not 2"):
        script_of(by_turns, tmp_path / "job")
    assert not (tmp_path / "job").exists()
