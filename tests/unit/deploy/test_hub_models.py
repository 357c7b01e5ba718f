"""Models of the hub are fetched once, before the services, which need no way to the hub then."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.deploy.kustomized import Object, built, containers_of, name_of, named, of_kind
from tests.unit.deploy.manifests import compose_files, deployment_of, rendered
from tests.unit.deploy.nomad_jobs import job_file
from tests.unit.deploy.policies import selects
from tests.unit.deploy.test_values import sized
from tests.unit.sizing.test_services import LLAMA_70B
from trinity.run.deploy.kubernetes import Overlay

MODEL = "meta/seventy"


def variables(container: Object) -> dict[str, Any]:
    return {one["name"]: one for one in container["env"]}


@pytest.mark.parametrize(
    ("overlay", "mode"), [("cluster", "ReadWriteMany"), ("one-node", "ReadWriteOnce")]
)
def test_kubernetes_fetches_into_a_claim(tmp_path: Path, overlay: Overlay, mode: str) -> None:
    changes: dict[str, Any] = {}
    if overlay == "one-node":
        changes = {"cluster": {"node_num": 1}, "trainer": {"rank_num": 4}}
        changes["explorer"] = {"rollout_model": {"engine_num": 1}}
    large = sized(tmp_path, LLAMA_70B, **changes)
    objects = built(rendered(large, "k8s", tmp_path / "out", overlay))
    claim = named(objects, "PersistentVolumeClaim", "cache")["spec"]
    assert claim["accessModes"] == [mode]
    assert claim["resources"]["requests"]["storage"] == "132Gi", "2 bytes of 70.6 billion"
    (job,) = (one for one in of_kind(objects, "Job") if name_of(one).startswith("fetch-models-"))
    (container,) = containers_of(job)
    assert container["args"] == [MODEL]
    token = variables(container)["HF_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert token == {"name": "hub", "key": "HF_TOKEN", "optional": True}
    for kind, name in (("StatefulSet", "trainer"), ("Deployment", "explorer")):
        waiting, service = containers_of(named(objects, kind, name))
        assert waiting["command"][-2:] == ["--wait", MODEL]
        assert variables(service)["HF_HUB_OFFLINE"]["value"] == "1"
        pod = named(objects, kind, name)["spec"]["template"]["spec"]
        (cache,) = (volume for volume in pod["volumes"] if volume["name"] == "cache")
        assert cache == {"name": "cache", "persistentVolumeClaim": {"claimName": "cache"}}
    policy = named(objects, "NetworkPolicy", "hub")["spec"]["podSelector"]
    reached = {
        name: selects(
            policy, {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "trinity"}
        )
        for name in ("fetch-models", "trainer", "explorer")
    }
    assert reached == {"fetch-models": True, "trainer": False, "explorer": False}


def test_without_models_of_the_hub_nothing_is_fetched(tmp_path: Path) -> None:
    objects = built(rendered(deployment_of("addition"), "k8s", tmp_path / "out"))
    assert not [one for one in objects if "fetch" in name_of(one) or name_of(one) == "cache"]
    _, override = compose_files(rendered(deployment_of("addition"), "compose", tmp_path / "c"))
    assert "fetch-models" not in override["services"]


def test_compose_fetches_before_the_services_with_the_callers_token(tmp_path: Path) -> None:
    one_node = {"cluster": {"node_num": 1}, "trainer": {"rank_num": 4}}
    engine = {"explorer": {"rollout_model": {"engine_num": 1}}}
    deployment = sized(tmp_path, LLAMA_70B, **one_node, **engine)
    _, override = compose_files(rendered(deployment, "compose", tmp_path / "out"))
    job = override["services"]["fetch-models"]
    assert (job["command"], job["volumes"]) == ([MODEL], ["cache:/cache"])
    assert job["environment"]["HF_TOKEN"] is None, "the caller's, if there is one"
    for name in ("trainer", "explorer"):
        after = override["services"][name]["depends_on"]
        assert after == {"fetch-models": {"condition": "service_completed_successfully"}}


@pytest.mark.parametrize("job", ["one-node", "cluster"])
def test_nomads_tasks_take_variables_that_need_not_be_there(job: str) -> None:
    """Without the question whether it exists, a task would wait for it."""
    file = job_file(job)
    (shared,) = file.of_kind("locals")
    assert shared.attributes["variables"].startswith('"{{ if nomadVarExists ')
    for name in ("buffer", "trainer", "explorer"):
        (task,) = (task for task in file.within("task") if task.name == name)
        own = [one.attributes for one in task.of_kind("template")]
        assert {
            "destination": '"secrets/variables.env"',
            "env": "true",
            "data": "local.variables",
        } in own


def test_secrets_of_models_elsewhere_may_be_missing(tmp_path: Path) -> None:
    """The pod starts, and the explorer names the variable."""
    from tests.unit.deploy.test_newer_parts import ELSEWHERE, auxiliary, with_stage

    deployment = replace(with_stage(**auxiliary("some/large-one", ELSEWHERE)))
    objects = built(rendered(deployment, "k8s", tmp_path / "out"))
    (container,) = containers_of(named(objects, "Deployment", "explorer"))
    found = [
        one["valueFrom"]["secretKeyRef"]
        for one in container["env"]
        if "secretKeyRef" in one.get("valueFrom", {})
    ]
    assert found and all(reference["optional"] for reference in found)
