"""The experiment's kustomize overlay, on top of deploy/k8s/overlays."""

from collections.abc import Mapping
from typing import Literal

import yaml
from pydantic import JsonValue

from trinity.run.deploy.deployment import MODELS, ExperimentDeployment, MountedFolder

Overlay = Literal["one-node", "cluster"]
Files = dict[str, str]
"""File contents by relative path."""
IMAGES = ("synchronizer", "buffer", "trainer", "explorer")
NAME_LABEL = "app.kubernetes.io/name"
POD_INDEX = "apps.kubernetes.io/pod-index"
"""The label with the number of a pod in its set; of Kubernetes 1.28 on."""
PORTS = {"trainer": 50053, "explorer": 50054}
KINDS: Mapping[str, tuple[str, str]] = {
    "buffer": ("apps/v1", "Deployment"),
    "explorer": ("apps/v1", "Deployment"),
    "synchronizer": ("apps/v1", "Deployment"),
    "trainer": ("apps/v1", "StatefulSet"),
}


def kubernetes_files(deployment: ExperimentDeployment, overlay: Overlay) -> Files:
    """Returns the files beside `k8s/`; kubectl applies them together."""
    patches = {name: _text(_patch(deployment, name, overlay)) for name in KINDS}
    files = {f"{name}.yaml": deployment.explained(text) for name, text in patches.items()}
    resources = [f"k8s/overlays/{overlay}", "experiment.yaml"]
    files["experiment.yaml"] = _text(_experiment(deployment))
    if deployment.uses_hub:
        files["hub.yaml"] = _text(_hub_policy())
        resources.append("hub.yaml")
    if deployment.model_variables:
        files["models.yaml"] = _text(_egress_policy(MODELS, ["explorer"], 443))
        resources.append("models.yaml")
    if deployment.otlp_endpoint:
        files["telemetry.yaml"] = _text(_telemetry_policy(deployment.otlp_port))
        resources.append("telemetry.yaml")
    if deployment.trainer_hosts > 1:
        files["gang.yaml"] = _texts(_leader_service("trainer"), _gang_policy("trainer", "gang"))
        resources.append("gang.yaml")
    if deployment.explorer_hosts > 1:
        files["engine.yaml"] = _texts(
            _leader_service("explorer"), _gang_policy("explorer", "engine")
        )
        resources.append("engine.yaml")
    files["kustomization.yaml"] = _text(_kustomization(deployment, resources))
    return files


def _kustomization(deployment: ExperimentDeployment, resources: list[str]) -> JsonValue:
    counts = {"explorer": deployment.num_explorer_services}
    if deployment.trainer_hosts > 1:
        counts["trainer"] = deployment.trainer_hosts
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "trinity",
        "resources": [*resources],
        "patches": _patches(deployment),
        "replicas": [{"name": name, "count": count} for name, count in counts.items()],
        "images": [_image(deployment, name) for name in IMAGES],
        "configMapGenerator": [{"name": "experiment-plan", "files": ["plan.json"]}],
    }


def _patches(deployment: ExperimentDeployment) -> JsonValue:
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
                "patch": _text(changes),
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
        environment += [_of_secret(variable) for variable in deployment.model_variables]
    if name == "trainer" and deployment.trainer_hosts > 1:
        environment += _gang_variables("trainer", "GANG", deployment.trainer_hosts)
    if name == "explorer" and deployment.explorer_hosts > 1:
        environment += _gang_variables("explorer", "ENGINE", deployment.explorer_hosts)
    container: dict[str, JsonValue] = {"name": name, "env": environment}
    if gpus := deployment.gpus(name):
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
    spec: dict[str, JsonValue] = {"containers": [container]}
    if folders := deployment.folders(name):
        container["volumeMounts"] = [_mount(*numbered, overlay) for numbered in enumerate(folders)]
        spec["volumes"] = _volumes(folders, overlay)
    version, kind = KINDS[name]
    template: JsonValue = {"template": {"spec": spec}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": template}


def _of_secret(variable: str) -> JsonValue:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": MODELS, "key": variable}}}


def _mount(position: int, folder: MountedFolder, overlay: Overlay) -> JsonValue:
    mount: dict[str, JsonValue] = {
        "name": f"folder-{position}",
        "mountPath": folder.path,
        "readOnly": not folder.is_writable,
    }
    if overlay == "cluster":
        mount |= {"name": "shared", "subPath": folder.path.lstrip("/")}
    return mount


def _volumes(folders: tuple[MountedFolder, ...], overlay: Overlay) -> JsonValue:
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


def _leader_service(service: str) -> JsonValue:
    """Returns the service by whose name hosts find the first one; its certificate has the name."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": service},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {NAME_LABEL: service, POD_INDEX: "0"},
            "ports": [{"name": "grpc", "port": PORTS[service]}],
        },
    }


def _gang_policy(service: str, name: str) -> JsonValue:
    """Lets the hosts of a gang or an engine reach every port of one another, and no other pod."""
    hosts: JsonValue = {"podSelector": {"matchLabels": {NAME_LABEL: service}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchLabels": {NAME_LABEL: service}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [hosts]}],
            "egress": [{"to": [hosts]}],
        },
    }


def _hub_policy() -> JsonValue:
    """Lets the services that fetch models or data from the hub reach the internet over HTTPS."""
    return _egress_policy("hub", ["buffer", "explorer", "trainer"], 443)


def _telemetry_policy(port: int) -> JsonValue:
    """Lets the services reach any host on the collector's port: its location is unknown here."""
    return _egress_policy("telemetry", [*KINDS], port)


def _egress_policy(name: str, services: list[JsonValue], port: int) -> JsonValue:
    selected: JsonValue = {"key": NAME_LABEL, "operator": "In", "values": services}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "podSelector": {"matchExpressions": [selected]},
            "policyTypes": ["Egress"],
            "egress": [{"ports": [{"protocol": "TCP", "port": port}]}],
        },
    }


def _submit_container() -> JsonValue:
    """Returns the container that starts the experiment and follows it to its end."""
    return {
        "name": "experiment",
        "image": "trinity-synchronizer",
        "command": ["trinity", "deploy", "submit"],
        "args": [
            "--plan=/etc/trinity/plan/plan.json",
            "--synchronizer=synchronizer:50051",
            "--buffer=buffer:50052",
        ],
        "envFrom": [{"configMapRef": {"name": "security"}}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            "limits": {"memory": "512Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "tls", "mountPath": "/etc/trinity/tls", "readOnly": True},
            {"name": "plan", "mountPath": "/etc/trinity/plan", "readOnly": True},
        ],
    }


def _pod_security() -> JsonValue:
    return {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _submit_pod() -> JsonValue:
    return {
        "restartPolicy": "Never",
        "serviceAccountName": "trinity",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(),
        "containers": [_submit_container()],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "tls", "secret": {"secretName": "operator-tls", "defaultMode": 0o440}},
            {"name": "plan", "configMap": {"name": "experiment-plan"}},
        ],
    }


def _failure_rules() -> JsonValue:
    errors: JsonValue = {"containerName": "experiment", "operator": "In", "values": [1, 2]}
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": errors},
    ]


def _experiment(deployment: ExperimentDeployment) -> JsonValue:
    """Returns a Job that ends with the experiment: a failed one stays failed.

    A lost pod is replaced. So is one whose services did not answer, after a growing pause.
    """
    labels: JsonValue = {NAME_LABEL: "experiment", "app.kubernetes.io/part-of": "trinity"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"experiment-{deployment.name}", "labels": labels},
        "spec": {
            "backoffLimit": 10,
            "podFailurePolicy": {"rules": _failure_rules()},
            "template": {"metadata": {"labels": labels}, "spec": _submit_pod()},
        },
    }


def _texts(*contents: JsonValue) -> str:
    return str(yaml.safe_dump_all(contents, sort_keys=False))


def _text(content: JsonValue) -> str:
    return str(yaml.safe_dump(content, sort_keys=False))
