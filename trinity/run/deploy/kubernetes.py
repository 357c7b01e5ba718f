"""The experiment's kustomize overlay, on top of deploy/k8s/overlays."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import JsonValue

from trinity.run.deploy.deployment import (
    MODELS,
    ExperimentDeployment,
    MountedFolder,
    fetch_command,
    plain_yaml,
    template,
)
from trinity.run.deploy.values import UNITS

Overlay = Literal["one-node", "cluster"]
Files = dict[str, str]
"""File contents by relative path."""
IMAGES = ("synchronizer", "buffer", "trainer", "explorer")
POD_INDEX = "apps.kubernetes.io/pod-index"
"""The label with the number of a pod in its set; of Kubernetes 1.28 on."""
HTTPS = 443
PORTS = {"trainer": 50053, "explorer": 50054}
CLAIMS: Mapping[Overlay, tuple[str, ...]] = {
    "one-node": ("cache", "postgres", "nats"),
    "cluster": ("cache", "shared"),
}
OF_SETS = ("postgres", "nats")
"""Claims that are the first of a set of the same name."""
FETCH = "fetch-models"
KINDS: Mapping[str, tuple[str, str]] = {
    "buffer": ("apps/v1", "Deployment"),
    "explorer": ("apps/v1", "Deployment"),
    "synchronizer": ("apps/v1", "Deployment"),
    "trainer": ("apps/v1", "StatefulSet"),
}


def kubernetes_files(deployment: ExperimentDeployment, overlay: Overlay) -> Files:
    """Returns the overlay files to apply together with `k8s/`."""
    patches = {name: plain_yaml(_patch(deployment, name, overlay)) for name in KINDS}
    files = {f"{name}.yaml": deployment.explained(text) for name, text in patches.items()}
    patched = set(files)
    files["experiment.yaml"] = template("experiment", name=deployment.job_name)
    if deployment.uses_hub:
        names = ["buffer"] if deployment.uses_hub_data else []
        files["hub.yaml"] = _egress("hub", ", ".join([*names, FETCH]), HTTPS)
        mode = "ReadWriteMany" if overlay == "cluster" else "ReadWriteOnce"
        files["cache.yaml"] = template("cache", mode=mode)
    if models := deployment.hub_models:
        content = [deployment.images.full("buffer", deployment.variant), *models]
        name = f"{FETCH}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]}"
        files["fetch.yaml"] = template("fetch", name=name, models=json.dumps(models))
    if deployment.model_variables:
        files["models.yaml"] = _egress(MODELS, "explorer", HTTPS)
    if deployment.values.otlp_endpoint:
        files["telemetry.yaml"] = _egress("telemetry", ", ".join(KINDS), deployment.otlp_port)
    if deployment.trainer_hosts > 1:
        files["gang.yaml"] = _hosts("trainer", "gang")
    if deployment.explorer_hosts > 1:
        files["engine.yaml"] = _hosts("explorer", "engine")
    resources = [f"k8s/overlays/{overlay}", *(name for name in files if name not in patched)]
    files["kustomization.yaml"] = plain_yaml(_kustomization(deployment, resources, overlay))
    return files


def _kustomization(
    deployment: ExperimentDeployment, resources: list[str], overlay: Overlay
) -> JsonValue:
    counts = {"explorer": deployment.num_explorer_services}
    if deployment.trainer_hosts > 1:
        counts["trainer"] = deployment.trainer_hosts
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "trinity",
        "resources": [*resources],
        "patches": [
            *_patches(deployment),
            *_claims(deployment, overlay),
            *_pull_secrets(deployment),
        ],
        "replicas": [{"name": name, "count": count} for name, count in counts.items()],
        "images": [_image(deployment, name) for name in IMAGES],
        "configMapGenerator": [{"name": "experiment-plan", "files": ["plan.json"]}],
    }


def _patches(deployment: ExperimentDeployment) -> list[JsonValue]:
    """Returns the patches; an explorer on several machines becomes a set of numbered pods."""
    patches: list[JsonValue] = [{"path": f"{name}.yaml"} for name in KINDS]
    if deployment.explorer_hosts > 1:
        changes: JsonValue = [
            {"op": "replace", "path": "/kind", "value": "StatefulSet"},
            {"op": "remove", "path": "/spec/strategy"},
            {"op": "add", "path": "/spec/serviceName", "value": "explorer"},
            {"op": "add", "path": "/spec/podManagementPolicy", "value": "Parallel"},
        ]
        patches.append(
            {
                "target": {"kind": "Deployment", "name": "explorer"},
                "patch": plain_yaml(changes),
                "options": {"allowKindChange": True},
            }
        )
    return patches


def _image(deployment: ExperimentDeployment, name: str) -> JsonValue:
    images = deployment.images
    image: dict[str, JsonValue] = {"name": f"trinity-{name}", "newName": images.name(name)}
    if digest := images.digests.get(name):
        return image | {"digest": digest}
    return image | {"newTag": images.tag_of(name, deployment.variant)}


def _patch(deployment: ExperimentDeployment, name: str, overlay: Overlay) -> JsonValue:
    """Returns folders, GPUs and variables as a patch of the workload of that name."""
    environment: list[JsonValue] = [
        {"name": key, "value": value} for key, value in deployment.environment(name).items()
    ]
    if name == "explorer":
        environment += [_secret(MODELS, variable) for variable in deployment.model_variables]
    if name == "trainer" and deployment.trainer_hosts > 1:
        environment += _gang_variables("trainer", "GANG", deployment.trainer_hosts)
    if name == "explorer" and deployment.explorer_hosts > 1:
        environment += _gang_variables("explorer", "ENGINE", deployment.explorer_hosts)
    container: dict[str, JsonValue] = {"name": name, "env": environment}
    if resources := _resources(deployment, name):
        container["resources"] = resources
    spec: dict[str, JsonValue] = {"containers": [container], **_placement(deployment, name)}
    volumes: list[JsonValue] = []
    if folders := deployment.folders(name):
        container["volumeMounts"] = [_mount(*numbered, overlay) for numbered in enumerate(folders)]
        volumes += _volumes(folders, overlay)
    if "shm" in (sizes := deployment.sizes(name)) and name in PORTS:
        shm: JsonValue = {"medium": "Memory", "sizeLimit": quantity(sizes["shm"])}
        volumes.append({"name": "shm", "emptyDir": shm})
    if deployment.uses_hub and name != "synchronizer":
        claim: JsonValue = {"claimName": "cache"}
        volumes.append({"name": "cache", "emptyDir": None, "persistentVolumeClaim": claim})
    if deployment.hub_models and name in PORTS:
        environment.append({"name": "HF_HUB_OFFLINE", "value": "1"})
        spec["initContainers"] = [_waiting(deployment, name)]
    if name == "buffer" and deployment.uses_hub_data:
        environment.append(_secret("hub", "HF_TOKEN"))
    if volumes:
        spec["volumes"] = volumes
    version, kind = KINDS[name]
    template: JsonValue = {"template": {"spec": spec}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": template}


def _secret(name: str, key: str) -> JsonValue:
    """Returns a variable from a Secret that may be missing; the service that reads it says so."""
    reference: JsonValue = {"name": name, "key": key, "optional": True}
    return {"name": key, "valueFrom": {"secretKeyRef": reference}}


def _waiting(deployment: ExperimentDeployment, name: str) -> JsonValue:
    """Returns the container that lets a service start once its models are fetched."""
    command = fetch_command("--wait")
    return {
        "name": "models",
        "image": f"trinity-{name}",
        "command": [*command, *deployment.hub_models],
        "env": [{"name": "HF_HOME", "value": "/cache/huggingface"}],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "cache", "mountPath": "/cache", "readOnly": True},
        ],
    }


def _resources(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    """Returns the requests and, of memory and GPUs, the same as the limit."""
    sizes = deployment.sizes(name)
    requests: dict[str, JsonValue] = {}
    limits: dict[str, JsonValue] = {}
    if "cpus" in sizes:
        requests["cpu"] = str(sizes["cpus"])
    if "memory" in sizes:
        requests["memory"] = limits["memory"] = quantity(sizes["memory"])
    if gpus := deployment.gpus(name):
        limits["nvidia.com/gpu"] = gpus
    return {key: value for key, value in (("requests", requests), ("limits", limits)) if value}


def _placement(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    """Returns what the values say of the nodes of a service."""
    values = deployment.values.service(name)
    given: dict[str, JsonValue] = {
        "nodeSelector": {**values.node_selector},
        "tolerations": [{**toleration} for toleration in values.tolerations],
        "runtimeClassName": values.runtime_class,
        "priorityClassName": values.priority_class,
    }
    return {key: value for key, value in given.items() if value}


def quantity(num_bytes: int) -> str:
    """Returns a number of bytes as Kubernetes writes it."""
    gibibytes, rest = divmod(num_bytes, UNITS["Gi"])
    return f"{-(-num_bytes // UNITS['Mi'])}Mi" if rest else f"{gibibytes}Gi"


def _claims(deployment: ExperimentDeployment, overlay: Overlay) -> Iterator[JsonValue]:
    """Yields patches of the claims for which there are values, or the plan asks for more."""
    sizes = deployment.claims()
    for name in CLAIMS[overlay]:
        if name == "cache" and not deployment.uses_hub:
            continue
        size, storage_class = sizes.get(name), deployment.values.claim(name).storage_class
        changes = {"/resources/requests/storage": size and quantity(size)}
        changes["/storageClassName"] = storage_class
        kind, path = "PersistentVolumeClaim", "/spec"
        if name in OF_SETS:
            kind, path = "StatefulSet", "/spec/volumeClaimTemplates/0/spec"
        patch: list[JsonValue] = [
            {"op": "add", "path": f"{path}{key}", "value": value}
            for key, value in changes.items()
            if value
        ]
        if patch:
            yield {"target": {"kind": kind, "name": name}, "patch": plain_yaml(patch)}


def _pull_secrets(deployment: ExperimentDeployment) -> Iterator[JsonValue]:
    names: list[JsonValue] = [{"name": name} for name in deployment.values.pull_secrets]
    if names:
        patch: JsonValue = [{"op": "add", "path": "/imagePullSecrets", "value": names}]
        yield {"target": {"kind": "ServiceAccount", "name": "trinity"}, "patch": plain_yaml(patch)}


def _mount(position: int, folder: MountedFolder, overlay: Overlay) -> JsonValue:
    mount: dict[str, JsonValue] = {
        "name": f"folder-{position}",
        "mountPath": folder.path,
        "readOnly": not folder.is_writable,
    }
    if overlay == "cluster":
        mount |= {"name": "shared", "subPath": folder.path.lstrip("/")}
    return mount


def _volumes(folders: tuple[MountedFolder, ...], overlay: Overlay) -> list[JsonValue]:
    if overlay == "cluster":
        return [{"name": "shared", "persistentVolumeClaim": {"claimName": "shared"}}]
    return [
        {"name": f"folder-{position}", "hostPath": {"path": folder.path, "type": "Directory"}}
        for position, folder in enumerate(folders)
    ]


def _gang_variables(service: str, network: str, num_hosts: int) -> list[JsonValue]:
    """Returns the place of a pod among hosts: its number in the set, its address, the leader."""
    prefix = f"TRINITY_{service.upper()}"
    return [
        {"name": f"{prefix}_NUM_HOSTS", "value": str(num_hosts)},
        {"name": f"{prefix}_LEADER", "value": f"{service}:{PORTS[service]}"},
        _of_pod(f"{prefix}_HOST", f"metadata.labels['{POD_INDEX}']"),
        _of_pod(f"{prefix}_{network}_ADDRESS", "status.podIP"),
    ]


def _of_pod(variable: str, field: str) -> JsonValue:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def _egress(name: str, services: str, port: int) -> str:
    """Returns the policy by which services reach any host on a port."""
    return template("egress", name=name, services=services, port=port)


def _hosts(service: str, name: str) -> str:
    """Returns the service and the policy by which the hosts of a gang or an engine speak."""
    port = PORTS[service]
    return template("hosts", service=service, name=name, port=port, pod_index=POD_INDEX)
