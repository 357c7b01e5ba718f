"""What an experiment puts into the manifests of each target."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.builders import stage
from tests.unit.deploy.manifests import (
    EXAMPLES,
    SERVICES,
    compose_files,
    deployment_of,
    json_file,
    objects,
    rendered,
)
from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.kubernetes import Overlay
from trinity.run.deploy.render import Target
from trinity.run.deploy.submission import read_plan
from trinity.run.deploy.values import DeploymentValues

VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
BOTH = pytest.mark.parametrize("example", ["addition", "gsm8k"])
TARGETS: list[tuple[Target, Overlay]] = [
    ("compose", "one-node"),
    ("k8s", "one-node"),
    ("k8s", "cluster"),
    ("nomad", "cluster"),
]
EACH_TARGET = pytest.mark.parametrize(("target", "overlay"), TARGETS)


@BOTH
@EACH_TARGET
def test_the_plan_stands_beside_the_manifests(
    tmp_path: Path, example: str, target: Target, overlay: Overlay
) -> None:
    deployment = deployment_of(example)
    folder = rendered(deployment, target, tmp_path / "out", overlay)
    plan = ExperimentPlan.model_validate_json((folder / "plan.json").read_text())
    assert plan == deployment.plan


@BOTH
def test_compose_gives_each_service_its_folders(tmp_path: Path, example: str) -> None:
    deployment = deployment_of(example)
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "out"))
    trainer = override["services"]["trainer"]["volumes"]
    assert [v["source"] for v in trainer if not v["read_only"]] == [deployment.plan.job_dir]
    explorer = override["services"]["explorer"]["volumes"]
    assert all(v["read_only"] for v in explorer)
    assert deployment.plan.job_dir in [v["source"] for v in explorer]
    buffer = override["services"]["buffer"]
    roots = buffer["environment"]["TRINITY_BUFFER_TASKSET_ROOTS"].split(":")
    assert {v["source"] for v in buffer["volumes"]} == {r for r in roots if r != "/cache"}


def test_gpus_are_shared_and_processors_get_their_own_images(tmp_path: Path) -> None:
    _, gpu = compose_files(rendered(deployment_of("gsm8k"), "compose", tmp_path / "gpu"))
    devices = {
        name: gpu["services"][name]["deploy"]["resources"]["reservations"]["devices"][0]
        for name in ("explorer", "trainer")
    }
    assert devices["explorer"]["device_ids"] == ["0"]
    assert devices["trainer"]["device_ids"] == ["1"]
    _, cpu = compose_files(rendered(deployment_of("addition"), "compose", tmp_path / "cpu"))
    assert cpu["services"]["trainer"]["image"] == "trinity-trainer:0.1.0-cpu"
    assert "reservations" not in str(cpu["services"]["trainer"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
@BOTH
@pytest.mark.parametrize("overlay", ["one-node", "cluster"])
def test_kubectl_builds_what_was_rendered(tmp_path: Path, example: str, overlay: Overlay) -> None:
    deployment = deployment_of(example)
    folder = rendered(deployment, "k8s", tmp_path / "out", overlay)
    built = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60
    )
    assert built.returncode == 0, built.stderr
    by_name: dict[tuple[str, str], dict[str, Any]] = {
        (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(built.stdout)
    }
    trainer = by_name["StatefulSet", "trainer"]["spec"]["template"]["spec"]
    (container,) = trainer["containers"]
    wanted = {folder.path: not folder.is_writable for folder in deployment.folders("trainer")}
    mounts = {m["mountPath"]: m.get("readOnly", False) for m in container["volumeMounts"]}
    assert wanted.items() <= mounts.items()
    named = {volume["name"] for volume in trainer["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == named
    gpus = container["resources"]["limits"].get("nvidia.com/gpu", 0)
    assert gpus == (1 if example == "gsm8k" else 0)
    assert ("Job", f"experiment-{deployment.job_name}") in by_name
    assert (("NetworkPolicy", "hub") in by_name) == (example == "gsm8k")
    assert (("StatefulSet", "postgres") in by_name) == (overlay == "one-node")


def test_a_job_is_named_after_plan_and_image_as_kubernetes_changes_none(tmp_path: Path) -> None:
    """Argo CD and Flux apply the same folder again and again."""

    def job(folder: str, tag: str = "0.1.0", **changes: Any) -> str:
        values = DeploymentValues(tag=tag)
        deployment = replace(deployment_of("addition", **changes), values=values)
        made = rendered(deployment, "k8s", tmp_path / folder)
        name: str = yaml.safe_load((made / "experiment.yaml").read_text())["metadata"]["name"]
        return name

    first = job("first")
    assert first.startswith("experiment-examples-addition-")
    assert job("again") == first
    assert job("other", seed=7) != first
    assert job("newer", "0.2.0") != first


def test_a_cluster_starts_as_many_explorers_as_asked_for(tmp_path: Path) -> None:
    plan = deployment_of("gsm8k")
    many = ExperimentDeployment(plan=plan.plan, explorers=4, plugin_dir=None)
    folder = rendered(many, "k8s", tmp_path / "out", "cluster")
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert kustomization["replicas"] == [{"name": "explorer", "count": 4}]
    variables = json_file(
        rendered(many, "nomad", tmp_path / "nomad", "cluster") / "experiment.vars.json"
    )
    assert (variables["explorers"], variables["explorer_gpus"]) == (4, 1)


def test_what_only_imitates_needs_no_explorer(tmp_path: Path) -> None:
    both = deployment_of("addition")
    plan = both.plan.model_copy(update={"stages": both.plan.stages[:1]})
    deployment = ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None)
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "out"))
    assert override["services"]["explorer"]["deploy"] == {"replicas": 0}


@pytest.mark.parametrize("target", ["compose", "k8s", "nomad"])
def test_what_trains_on_another_run_needs_its_name_and_no_explorer(
    tmp_path: Path, target: Target
) -> None:
    """Where that run's experiences are, the database of the deployment knows."""
    examples = deployment_of("gsm8k")
    rows = {"source_run": "explored", "source_stage": "look"}
    buffer = {"trainer_input": {"experience_buffer": rows}}
    plan = ExperimentPlan(
        tenant="default",
        label="demo/learn",
        job_dir="/runs/demo/learn",
        seed=1,
        stages=(stage(mode="train", buffer=buffer),),
    )
    folder = rendered(replace(examples, plan=plan), target, tmp_path / "out")
    submitted = read_plan(folder / "plan.json").stages[0].stored_rollouts
    assert submitted is not None
    assert (submitted.run, submitted.stage) == ("demo/explored", "look")
    assert _num_explorers(folder, target) == 0


def _num_explorers(folder: Path, target: Target) -> int:
    match target:
        case "compose":
            _, override = compose_files(folder)
            return int(override["services"]["explorer"]["deploy"]["replicas"])
        case "k8s":
            kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
            (explorers,) = kustomization["replicas"]
            return int(explorers["count"])
        case "nomad":
            return int(json_file(folder / "experiment.vars.json")["explorers"])


def test_plugins_are_mounted_and_named(tmp_path: Path) -> None:
    plain = deployment_of("addition")
    deployment = ExperimentDeployment(plan=plain.plan, explorers=1, plugin_dir=Path("/work/own"))
    folder = rendered(deployment, "k8s", tmp_path / "out")
    patch = next(one for one in objects(folder) if one["metadata"]["name"] == "explorer")
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert {"name": "TRINITY_PLUGIN_DIRS", "value": "/work/own"} in container["env"]
    assert "/work/own" in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_the_collector_is_told_to_every_service_and_reached(tmp_path: Path) -> None:
    endpoint = "http://otel.monitoring:4318"
    deployment = replace(deployment_of("addition"), values=DeploymentValues(otlp_endpoint=endpoint))
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "compose"))
    variables = json_file(rendered(deployment, "nomad", tmp_path / "n") / "experiment.vars.json")
    folder = rendered(deployment, "k8s", tmp_path / "k8s", "cluster")
    for name in SERVICES:
        assert override["services"][name]["environment"][VARIABLE] == endpoint
        assert variables["environment"][name][VARIABLE] == endpoint
        patch = yaml.safe_load((folder / f"{name}.yaml").read_text())
        (container,) = patch["spec"]["template"]["spec"]["containers"]
        assert {"name": VARIABLE, "value": endpoint} in container["env"]
    policy = yaml.safe_load((folder / "telemetry.yaml").read_text())["spec"]
    assert policy["egress"] == [{"ports": [{"protocol": "TCP", "port": 4318}]}]
    (who,) = policy["podSelector"]["matchExpressions"]
    assert set(who["values"]) == set(SERVICES)


def test_without_a_collector_nothing_is_sent(tmp_path: Path) -> None:
    folder = rendered(deployment_of("addition"), "k8s", tmp_path / "k8s")
    assert not (folder / "telemetry.yaml").exists()
    base, override = compose_files(rendered(deployment_of("addition"), "compose", tmp_path / "c"))
    for name in SERVICES:
        assert base["services"][name]["environment"][VARIABLE] == f"${{{VARIABLE}:-}}"
        assert VARIABLE not in override["services"][name]["environment"]


def test_a_rendering_replaces_an_older_one_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    rendered(deployment_of("addition"), "k8s", folder)
    rendered(deployment_of("gsm8k"), "k8s", folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds mine\.txt .* give an empty or a new folder"):
        rendered(deployment_of("addition"), "compose", other)


def test_code_that_is_in_no_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the reward `examples\.custom_reward.* `--plugin-dir`"):
        rendered(deployment_of("custom_reward"), "compose", tmp_path / "out")
    with pytest.raises(UserError, match=r"the advantage .* is not in the images"):
        rendered(deployment_of("custom_algorithm"), "compose", tmp_path / "out")


def test_one_node_has_one_explorer(tmp_path: Path) -> None:
    plain = deployment_of("addition")
    deployment = ExperimentDeployment(plan=plain.plan, explorers=2, plugin_dir=None)
    with pytest.raises(UserError, match="`--explorers 2`: on one node"):
        rendered(deployment, "compose", tmp_path / "out")


def test_a_plan_with_a_password_is_refused(tmp_path: Path) -> None:
    deployment = deployment_of("addition")
    (first, second) = deployment.plan.stages
    taskset = second.tasksets[0].model_copy(
        update={"storage_type": "sql", "path": "postgresql://me:hunter2@db.example/tasks"}
    )
    stages = (first, second.model_copy(update={"tasksets": (taskset,)}))
    secret = ExperimentDeployment(
        plan=deployment.plan.model_copy(update={"stages": stages}), explorers=1, plugin_dir=None
    )
    with pytest.raises(UserError, match=r"`stages\.tasksets\.path` holds a secret") as refusal:
        rendered(secret, "compose", tmp_path / "out")
    assert "hunter2" not in str(refusal.value)
    assert not (tmp_path / "out").exists()


def test_every_example_is_rendered_or_told_why_not(tmp_path: Path) -> None:
    for file in sorted(EXAMPLES.glob("*/*.yaml")):
        try:
            rendered(deployment_of(file.stem), "compose", tmp_path / file.stem)
        except UserError as error:
            assert "--plugin-dir" in str(error)
