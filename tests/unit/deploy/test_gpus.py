"""What a rendering asks for is there: GPUs of one machine for a process, of all for all."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.builders import IMITATION, REINFORCEMENT, config
from tests.unit.deploy.manifests import compose_files, json_file, rendered
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.kubernetes import Overlay
from trinity.run.deploy.render import Target

LISTENING = {"explorer_input": {"default_workflow_type": "math_workflow"}}
TWO_MACHINES = {"node_num": 2, "gpu_per_node": 8}


def deployment(explorers: int = 1, **changes: Any) -> ExperimentDeployment:
    given = {"cluster": {"gpu_per_node": 8}, "buffer": LISTENING, **changes}
    plan = plan_experiment(config(**given))
    return ExperimentDeployment(plan=plan, explorers=explorers, plugin_dir=None)


def engines(number: int) -> dict[str, object]:
    return {"rollout_model": {"engine_num": number}}


def test_a_stage_that_rolls_nothing_out_leaves_the_explorers_gpus_alone(tmp_path: Path) -> None:
    staged = deployment(stages=[IMITATION, REINFORCEMENT])
    assert (staged.gpus("explorer"), staged.gpus("trainer")) == (1, 7)
    _, override = compose_files(rendered(staged, "compose", tmp_path / "out"))
    devices = [
        device
        for name in ("explorer", "trainer")
        for one in override["services"][name]["deploy"]["resources"]["reservations"]["devices"]
        for device in one["device_ids"]
    ]
    assert devices == [str(number) for number in range(8)]


def test_without_training_no_gpu_is_kept_for_it() -> None:
    explores = deployment(mode="explore", explorer=engines(8))
    assert (explores.gpus("explorer"), explores.gpus("trainer")) == (8, 0)


@pytest.mark.parametrize("target", ["compose", "k8s", "nomad"])
def test_one_node_has_the_gpus_of_one(tmp_path: Path, target: Target) -> None:
    two = deployment(cluster=TWO_MACHINES, explorer=engines(8))
    with pytest.raises(UserError, match=r"one node has 8 GPUs.*explorer takes 8.*trainer 8"):
        rendered(two, target, tmp_path / "out")


@pytest.mark.parametrize(("target", "overlay"), [("k8s", "cluster"), ("nomad", "cluster")])
def test_a_cluster_has_those_of_several(tmp_path: Path, target: Target, overlay: Overlay) -> None:
    two = deployment(cluster=TWO_MACHINES, explorer=engines(8))
    folder = rendered(two, target, tmp_path / "out", overlay)
    if target == "nomad":
        variables = json_file(folder / "experiment.vars.json")
        assert (variables["explorer_gpus"], variables["trainer_gpus"]) == (8, 8)


def test_one_node_counts_all_explorers(tmp_path: Path) -> None:
    many = deployment(explorers=2)
    with pytest.raises(UserError, match=r"2 explorers take 2.*trainer 7"):
        rendered(many, "k8s", tmp_path / "out")
    rendered(deployment(explorers=2, trainer={"rank_num": 6}), "k8s", tmp_path / "out")


def test_an_explorer_is_on_one_machine(tmp_path: Path) -> None:
    wide = deployment(cluster={"node_num": 3, "gpu_per_node": 8}, explorer=engines(16))
    with pytest.raises(UserError, match=r"one explorer takes 16 GPUs.*engine_num.*--explorers"):
        rendered(wide, "k8s", tmp_path / "out", "cluster")


FOUR_MACHINES = {"node_num": 4, "gpu_per_node": 8}


def of_four_machines() -> ExperimentDeployment:
    """Engines on one machine, a gang on the others."""
    return deployment(
        cluster=FOUR_MACHINES,
        explorer=engines(8),
        buffer={**LISTENING, "batch_size": 8},
        algorithm={"algorithm_type": "grpo", "repeat_times": 8},
    )


def test_a_gang_of_several_machines_is_a_set_of_pods_that_only_reach_one_another(
    tmp_path: Path,
) -> None:
    four = of_four_machines()
    assert (four.plan.num_ranks, four.trainer_hosts, four.gpus("trainer")) == (24, 3, 8)
    folder = rendered(four, "k8s", tmp_path / "out", "cluster")
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert {"name": "trainer", "count": 3} in kustomization["replicas"]
    assert "gang.yaml" in kustomization["resources"]
    patch = yaml.safe_load((folder / "trainer.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    given = {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}
    assert given["TRINITY_TRAINER_NUM_HOSTS"] == "3"
    assert given["TRINITY_TRAINER_LEADER"] == "trainer:50053"
    assert given["TRINITY_TRAINER_GANG_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert "pod-index" in given["TRINITY_TRAINER_HOST"]["fieldRef"]["fieldPath"]
    service, policy = yaml.safe_load_all((folder / "gang.yaml").read_text())
    assert service["spec"]["selector"]["apps.kubernetes.io/pod-index"] == "0"
    (source,) = policy["spec"]["ingress"][0]["from"]
    assert source == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "trainer"}}}
    assert policy["spec"]["egress"] == [{"to": [source]}]


def test_a_gang_of_one_machine_gets_no_policy_of_its_own(tmp_path: Path) -> None:
    two = deployment(cluster=TWO_MACHINES, explorer=engines(8))
    folder = rendered(two, "k8s", tmp_path / "out", "cluster")
    assert not (folder / "gang.yaml").exists()
    assert "NUM_HOSTS" not in (folder / "trainer.yaml").read_text()


@pytest.mark.parametrize(
    ("target", "overlay"),
    [("compose", "one-node"), ("compose", "cluster"), ("k8s", "one-node"), ("nomad", "one-node")],
)
def test_a_gang_of_several_machines_is_refused_where_one_is_rendered(
    tmp_path: Path, target: Target, overlay: Overlay
) -> None:
    with pytest.raises(UserError, match=r"gang has 3 machines, and this renders one.*nomad"):
        rendered(of_four_machines(), target, tmp_path / "out", overlay)


def test_nomad_starts_a_trainer_for_each_machine_of_the_gang(tmp_path: Path) -> None:
    folder = rendered(of_four_machines(), "nomad", tmp_path / "out", "cluster")
    variables = json_file(folder / "experiment.vars.json")
    assert (variables["trainers"], variables["trainer_gpus"]) == (3, 8)
    one = rendered(deployment(), "nomad", tmp_path / "one")
    assert json_file(one / "experiment.vars.json")["trainers"] == 1


@pytest.mark.parametrize("target", ["compose", "k8s", "nomad"])
def test_turns_on_one_gpu_are_not_for_containers(tmp_path: Path, target: Target) -> None:
    by_turns = deployment(mode="colocate", cluster={"gpu_per_node": 1})
    with pytest.raises(UserError, match=r"`mode: colocate` needs.*start it with `trinity run`"):
        rendered(by_turns, target, tmp_path / "out")


def on_two_machines(explorers: int = 1, **rollout: object) -> ExperimentDeployment:
    """An engine larger than one machine, and one machine of ranks."""
    return deployment(
        explorers,
        cluster={"node_num": 3, "gpu_per_node": 8},
        explorer={"rollout_model": {"tensor_parallel_size": 16, **rollout}},
    )


def test_an_engine_of_several_machines_is_a_set_of_pods_that_only_reach_one_another(
    tmp_path: Path,
) -> None:
    wide = on_two_machines()
    assert (wide.explorer_hosts, wide.gpus("explorer"), wide.trainer_hosts) == (2, 8, 1)
    folder = rendered(wide, "k8s", tmp_path / "out", "cluster")
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert {"name": "explorer", "count": 2} in kustomization["replicas"]
    assert "engine.yaml" in kustomization["resources"]
    change = kustomization["patches"][-1]
    assert change["options"] == {"allowKindChange": True}
    assert yaml.safe_load(change["patch"])[0]["value"] == "StatefulSet"
    patch = yaml.safe_load((folder / "explorer.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    given = {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}
    assert given["TRINITY_EXPLORER_NUM_HOSTS"] == "2"
    assert given["TRINITY_EXPLORER_LEADER"] == "explorer:50054"
    assert given["TRINITY_EXPLORER_ENGINE_ADDRESS"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert "pod-index" in given["TRINITY_EXPLORER_HOST"]["fieldRef"]["fieldPath"]
    service, policy = yaml.safe_load_all((folder / "engine.yaml").read_text())
    assert service["spec"]["selector"]["apps.kubernetes.io/pod-index"] == "0"
    (source,) = policy["spec"]["ingress"][0]["from"]
    assert source == {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "explorer"}}}
    assert policy["spec"]["egress"] == [{"to": [source]}]


def test_an_engine_of_one_machine_stays_a_deployment(tmp_path: Path) -> None:
    folder = rendered(deployment(), "k8s", tmp_path / "out")
    assert not (folder / "engine.yaml").exists()
    assert "allowKindChange" not in (folder / "kustomization.yaml").read_text()
    assert "NUM_HOSTS" not in (folder / "explorer.yaml").read_text()


@pytest.mark.parametrize(
    ("target", "overlay"),
    [("compose", "one-node"), ("compose", "cluster"), ("k8s", "one-node"), ("nomad", "one-node")],
)
def test_an_engine_of_several_machines_is_refused_where_one_is_rendered(
    tmp_path: Path, target: Target, overlay: Overlay
) -> None:
    with pytest.raises(UserError, match=r"one engine has 2 machines, and this renders one.*nomad"):
        rendered(on_two_machines(), target, tmp_path / "out", overlay)


def test_nomad_starts_an_explorer_for_each_machine_of_the_engine(tmp_path: Path) -> None:
    folder = rendered(on_two_machines(), "nomad", tmp_path / "out", "cluster")
    variables = json_file(folder / "experiment.vars.json")
    assert (variables["explorers"], variables["explorer_hosts"]) == (2, 2)
    assert variables["explorer_gpus"] == 8


def test_one_engine_of_several_machines_is_all_that_explores(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`--explorers 2`: an engine on 2 machines is all"):
        rendered(on_two_machines(explorers=2), "k8s", tmp_path / "out", "cluster")
