"""The experiment's part of a compose project: compose reads it on top of compose.yaml."""

from pydantic import JsonValue

from trinity.deploy.deployment import ExperimentDeployment, MountedFolder
from trinity.errors import UserError

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")


def compose_override(deployment: ExperimentDeployment) -> dict[str, JsonValue]:
    """Returns the content of compose.override.yaml.

    Raises: UserError when one node cannot do it.
    """
    if deployment.explorers > 1:
        raise UserError(
            f"`--explorers {deployment.explorers}`: on one node the services share their loopback, "
            "so there is one explorer: use `--target k8s` or `nomad` for more"
        )
    services: dict[str, JsonValue] = {name: _service(deployment, name) for name in SERVICES}
    for job, service in (
        ("accounts", "synchronizer"),
        ("migrate-synchronizer", "synchronizer"),
        ("migrate-buffer", "buffer"),
    ):
        services[job] = {"image": deployment.images.full(service, deployment.variant)}
    services["experiment"] = _experiment(deployment)
    return {"services": services, "configs": {"plan": {"file": "./plan.json"}}}


def _service(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    rendered: dict[str, JsonValue] = {
        "image": deployment.images.full(name, deployment.variant),
        "environment": {**deployment.environment(name)},
    }
    if name == "explorer" and (variables := deployment.model_variables):
        # Without a value, compose takes the variable from its caller's environment.
        rendered["environment"] = {**deployment.environment(name), **dict.fromkeys(variables)}
    if folders := deployment.folders(name):
        rendered["volumes"] = [_bind(folder) for folder in folders]
    if devices := _devices(deployment, name):
        wanted: JsonValue = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
        rendered["deploy"] = {"resources": {"reservations": {"devices": [wanted]}}}
    if name == "explorer" and not deployment.needs_explorer:
        rendered["deploy"] = {"replicas": 0}
    return rendered


def _bind(folder: MountedFolder) -> JsonValue:
    """Mounts a folder; a missing one is an error, since the engine would create it as root."""
    return {
        "type": "bind",
        "source": folder.path,
        "target": folder.path,
        "read_only": not folder.is_writable,
        "bind": {"create_host_path": False},
    }


def _devices(deployment: ExperimentDeployment, name: str) -> list[JsonValue]:
    """Returns GPU ids: rollout takes the first GPUs, training the next ones."""
    first = deployment.gpus("explorer") if name == "trainer" else 0
    return [str(first + i) for i in range(deployment.gpus(name))]


def _experiment(deployment: ExperimentDeployment) -> JsonValue:
    """Returns a container that ends with the experiment."""
    return {
        "image": deployment.images.full("synchronizer", deployment.variant),
        "entrypoint": ["trinity", "deploy", "submit"],
        "command": [
            "--plan=/etc/trinity/plan.json",
            "--synchronizer=127.0.0.1:50051",
            "--buffer=127.0.0.1:50052",
        ],
        "configs": [{"source": "plan", "target": "/etc/trinity/plan.json"}],
        "network_mode": "service:network",
        "depends_on": {
            name: {"condition": "service_healthy"} for name in ("synchronizer", "buffer")
        },
        "user": "${TRINITY_UID:-10001}:${TRINITY_GID:-10001}",
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "restart": "no",
    }
