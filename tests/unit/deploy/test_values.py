"""Sizes of a rendering come from the plan, and what a deployment has of its own from one file."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.builders import GRPO, config
from tests.unit.deploy.kustomized import built, containers_of, named
from tests.unit.deploy.manifests import SHIPPED, compose_files, deployment_of, json_file, rendered
from tests.unit.deploy.nomad_jobs import job_file
from tests.unit.sizing.test_plan_command import QWEN
from tests.unit.sizing.test_services import LLAMA_70B, ON_SIXTEEN, P
from tests.unit.subtests import as_subtests
from trinity.config.planning import plan_experiment
from trinity.config.schema.experiment import deep_merge
from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.values import (
    ClaimValues,
    DeploymentValues,
    ServiceValues,
    num_bytes,
    read_values,
    write_digests,
    write_values,
)

MIB, GIB = 2**20, 2**30


def sized(tmp_path: Path, model: dict[str, Any], **changes: Any) -> ExperimentDeployment:
    """Of a model that is only described, on eight GPUs."""
    file = tmp_path / f"{model['hidden_size']}.json"
    file.write_text(json.dumps(model))
    plan = plan_experiment(config(GRPO, **deep_merge(ON_SIXTEEN, changes)))
    return ExperimentDeployment(plan=plan, explorers=1, plugin_dir=None, model_config=file)


def of_kubernetes(folder: Path) -> dict[str, Any]:
    *_, container = containers_of(named(built(folder), "StatefulSet", "trainer"))
    resources: dict[str, Any] = container["resources"]
    return resources


def test_seventy_billion_parameters_get_the_memory_of_their_plan(tmp_path: Path) -> None:
    """And not the 64 GiB of a model of 1.5 billion, as the shipped manifests have it."""
    large = sized(tmp_path, LLAMA_70B, trainer={"optimizer_offload": True})
    planned = large.sizes("trainer")
    assert planned["memory"] > 900 * GIB
    folder = rendered(large, "k8s", tmp_path / "k8s", "cluster")
    found = of_kubernetes(folder)
    assert num_bytes(found["limits"]["memory"]) == planned["memory"]
    assert found["requests"]["memory"] == found["limits"]["memory"]
    assert found["requests"]["cpu"] == str(planned["cpus"]) == "33"
    pod = named(built(folder), "StatefulSet", "trainer")["spec"]["template"]["spec"]
    (shm,) = (volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "shm")
    assert num_bytes(shm["sizeLimit"]) == planned["shm"]
    claim = named(built(folder), "PersistentVolumeClaim", "shared")["spec"]["resources"]
    assert num_bytes(claim["requests"]["storage"]) > 2 * 12 * P, "one checkpoint and the next"
    small = sized(tmp_path, QWEN)
    memory = of_kubernetes(rendered(small, "k8s", tmp_path / "small", "cluster"))["limits"][
        "memory"
    ]
    assert num_bytes(memory) < planned["memory"] / 5


def test_compose_and_nomad_get_them_in_their_units(tmp_path: Path) -> None:
    large = sized(tmp_path, LLAMA_70B)
    planned = large.sizes("explorer")
    variables = rendered(large, "nomad", tmp_path / "nomad", "cluster") / "experiment.vars.json"
    assert json_file(variables)["sizes"]["explorer"] == {
        "cpu": planned["cpus"] * 1000,
        "memory": planned["memory"] // MIB,
        "shm": planned["shm"],
    }
    one_node = {"cluster": {"node_num": 1}, "trainer": {"rank_num": 4}}
    engine = {"explorer": {"rollout_model": {"engine_num": 1}}}
    on_one = sized(tmp_path, LLAMA_70B, **one_node, **engine)
    _, override = compose_files(rendered(on_one, "compose", tmp_path / "compose"))
    explorer = override["services"]["explorer"]
    planned = on_one.sizes("explorer")
    assert explorer["deploy"]["resources"]["limits"] == {"memory": f"{planned['memory'] // MIB}m"}
    assert explorer["shm_size"] == f"{planned['shm'] // MIB}m"


@pytest.mark.parametrize("job", ["one-node", "cluster"])
def test_nomads_tasks_take_the_sizes_that_they_are_given(job: str) -> None:
    file = job_file(job)
    (shared,) = file.of_kind("locals")
    assert "merge(size, lookup(var.sizes, name, {}))" in shared.attributes["sizes"]
    for name in ("synchronizer", "buffer", "trainer", "explorer"):
        (task,) = (task for task in file.within("task") if task.name == name)
        (resources,) = task.of_kind("resources")
        assert resources.attributes["memory"] == f"local.sizes.{name}.memory"
        assert resources.attributes["cpu"] == f"local.sizes.{name}.cpu"


def test_without_a_description_of_the_model_the_shipped_sizes_stay(tmp_path: Path) -> None:
    unknown = replace(sized(tmp_path, LLAMA_70B), model_config=None)
    assert unknown.sizes("trainer") == {}
    folder = rendered(unknown, "k8s", tmp_path / "k8s", "cluster")
    assert of_kubernetes(folder)["limits"]["memory"] == "64Gi"


VALUES = DeploymentValues(
    pull_secrets=("login",),
    services={
        "trainer": ServiceValues(
            memory="700Gi",
            cpus=40,
            node_selector={"gpu": "h100"},
            tolerations=({"key": "gpu", "operator": "Exists"},),
            runtime_class="nvidia",
            priority_class="training",
        )
    },
    claims={
        "shared": ClaimValues(size="9Ti", storage_class="nfs"),
        "postgres": ClaimValues(storage_class="fast"),
    },
)


def test_given_values_win_and_say_where_kubernetes_puts_what(tmp_path: Path) -> None:
    given = replace(sized(tmp_path, LLAMA_70B), values=VALUES)
    objects = built(rendered(given, "k8s", tmp_path / "k8s", "cluster"))
    pod = named(objects, "StatefulSet", "trainer")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["memory"] == "700Gi"
    assert container["resources"]["requests"] == {"cpu": "40", "memory": "700Gi"}
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (pod["runtimeClassName"], pod["priorityClassName"]) == ("nvidia", "training")
    account = named(objects, "ServiceAccount", "trinity")
    assert account["imagePullSecrets"] == [{"name": "login"}]
    claim = named(objects, "PersistentVolumeClaim", "shared")["spec"]
    assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == (
        "9216Gi",
        "nfs",
    )
    one_node = built(
        rendered(replace(deployment_of("addition"), values=VALUES), "k8s", tmp_path / "one")
    )
    (template,) = named(one_node, "StatefulSet", "postgres")["spec"]["volumeClaimTemplates"]
    assert template["spec"]["storageClassName"] == "fast"
    assert template["spec"]["resources"]["requests"]["storage"] == "100Gi"


def test_the_file_is_written_once_and_survives_the_next_rendering(tmp_path: Path) -> None:
    folder = rendered(deployment_of("addition"), "k8s", tmp_path / "out")
    assert read_values(folder) == DeploymentValues(), "it explains keys and sets none"
    (folder / "values.yaml").write_text("registry: r.example.org  # ours\n")
    again = replace(deployment_of("addition"), values=read_values(folder))
    rendered(again, "k8s", folder)
    assert (folder / "values.yaml").read_text() == "registry: r.example.org  # ours\n"
    assert "r.example.org/trinity-buffer" in (folder / "kustomization.yaml").read_text()


def test_the_file_explains_every_key_as_it_may_be_written(tmp_path: Path) -> None:
    lines = (SHIPPED / "templates" / "values.yaml").read_text().splitlines()
    keys = [line.removeprefix("# ") for line in lines if re.match(r"# +\w+:|# \w+:", line)]
    text = "\n".join(keys).replace("sha256:...", f"sha256:{64 * 'a'}")
    (tmp_path / "values.yaml").write_text(text)
    values = read_values(tmp_path)
    assert yaml.safe_load(text).keys() == DeploymentValues.model_fields.keys()
    assert values.services["trainer"].model_fields_set == ServiceValues.model_fields.keys()


@as_subtests(
    ("text", "said"),
    [
        ("registri: r\n", "there is no key `registri`: correct"),
        ("services: {trainer: {memory: 64GB}}\n", r"`services\.trainer\.memory` is wrong"),
        ("services: {trainers: {cpus: 1}}\n", r"there is no key `services\.trainers`"),
        ("registri: r\ntagg: t\n", "no key `registri`; there is no key `tagg`"),
        ("claims: {shared: {size: 1}}\n", r"`claims.shared.size` is wrong"),
        ("digests: {buffer: latest}\n", r"`digests.buffer` is wrong"),
        ("otlp_endpoint: 'http://me:x@otel'\n", r"`otlp_endpoint` is wrong"),
        ("otlp_endpoint: otel:4317\n", r"`otlp_endpoint` is wrong"),
        ("a list\n", r"`its content` is wrong"),
        ("a: [\n", r"is no YAML"),
    ],
)
def test_what_is_no_value_is_refused_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "values.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as refused:
        read_values(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "values.yaml"))
    assert "\n" not in str(refused.value)


def test_digests_are_written_and_all_else_is_kept(tmp_path: Path) -> None:
    tmp_path.joinpath("values.yaml").write_text(
        "tag: t1  # ours\ndigests:\n  buffer: old\nregistry: r\n"
    )
    for letter in "ab":
        write_digests(tmp_path, {"buffer": f"sha256:{64 * letter}"})
    text = (tmp_path / "values.yaml").read_text()
    assert "tag: t1  # ours\n" in text and text.count("digests:") == 1
    assert read_values(tmp_path).digests == {"buffer": f"sha256:{64 * 'b'}"}
    assert read_values(tmp_path).registry == "r"
    write_values(tmp_path)
    assert (tmp_path / "values.yaml").read_text() == text
