"""Renders the manifests of a deployment for compose, Kubernetes or Nomad, with notes."""

import itertools
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import JsonValue

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError
from trinity.rft.checks.names import check_part_names
from trinity.run.deploy.deployment import (
    FUNCTION_TRUST,
    MODELS,
    TRUST_COMMENT,
    ExperimentDeployment,
    MountedFolder,
    fetch_command,
    plain_yaml,
    template,
)
from trinity.run.deploy.kubernetes import Overlay, kubernetes_files
from trinity.run.deploy.values import UNITS, write_values
from trinity.runtime.owned_places import claim_folder
from trinity.runtime.shipped import shipped

MIB = UNITS["Mi"]
WITH_SHM = ("trainer", "explorer")
"""Services that use /dev/shm."""
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
CACHE = "/alloc/data/huggingface"
"""Shared by the tasks of a group, and kept while they stay on a node."""
PLAN_FROM_JOBS = "../plan.json"
"""Nomad resolves paths relative to the job file."""
Target = Literal["compose", "k8s", "nomad"]
COPIED: dict[Target, tuple[str, ...]] = {
    "compose": ("compose.studio.yaml", "nats", "observability"),
    "k8s": ("k8s", "nats", "observability"),
    "nomad": ("nomad", "nats"),
}
PLAN = "plan.json"
VARIABLES = "experiment.vars.json"


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
    image = deployment.images.full("synchronizer", deployment.variant)
    services["experiment"] = {"image": image, **yaml.safe_load(template("compose-experiment"))}
    if deployment.hub_models:
        services["fetch-models"] = _fetching(deployment)
    return {"services": services, "configs": {"plan": {"file": "./plan.json"}}}


def _service(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    environment: dict[str, JsonValue] = {**deployment.environment(name)}
    rendered: dict[str, JsonValue] = {
        "image": deployment.images.full(name, deployment.variant),
        "environment": environment,
    }
    # Without a value, compose takes a variable from its caller's environment.
    if name == "explorer":
        environment |= dict.fromkeys(deployment.model_variables)
    if name == "buffer" and deployment.uses_hub_data:
        environment["HF_TOKEN"] = None
    if deployment.hub_models and name in WITH_SHM:
        environment["HF_HUB_OFFLINE"] = "1"
        rendered["depends_on"] = {"fetch-models": {"condition": "service_completed_successfully"}}
    if folders := deployment.folders(name):
        rendered["volumes"] = [_bind(folder, deployment.values.root) for folder in folders]
    resources: dict[str, JsonValue] = {}
    if limits := _limits(deployment, name):
        resources["limits"] = limits
    if devices := _devices(deployment, name):
        wanted: JsonValue = {"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}
        resources["reservations"] = {"devices": [wanted]}
    if resources:
        rendered["deploy"] = {"resources": resources}
    if "shm" in (sizes := deployment.sizes(name)) and name in WITH_SHM:
        rendered["shm_size"] = f"{sizes['shm'] // MIB}m"
    if name == "explorer" and not deployment.needs_explorer:
        rendered["deploy"] = {"replicas": 0}
    return rendered


def _fetching(deployment: ExperimentDeployment) -> JsonValue:
    """Returns the job that fills the cache, confined as the one that submits."""
    job: dict[str, JsonValue] = yaml.safe_load(template("compose-experiment"))
    return {
        **{key: value for key, value in job.items() if key not in ("configs", "depends_on")},
        "image": deployment.images.full("buffer", deployment.variant),
        "entrypoint": [*fetch_command()],
        "command": [*deployment.hub_models],
        # A variable without a value is the caller's, if there is one.
        "environment": {"HF_HOME": "/cache/huggingface", "HF_TOKEN": None},
        "volumes": ["cache:/cache"],
        "depends_on": {"network": {"condition": "service_started"}},
        "restart": "on-failure:5",
    }


def _limits(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    """Returns the limit of memory, and of processors where the values have one.

    Docker refuses a limit of more processors than the machine has, and compose has no request.
    """
    sizes, limits = deployment.sizes(name), dict[str, JsonValue]()
    if "memory" in sizes:
        limits["memory"] = f"{sizes['memory'] // MIB}m"
    if cpus := deployment.values.service(name).cpus:
        limits["cpus"] = str(cpus)
    return limits


def _bind(folder: MountedFolder, root: str) -> JsonValue:
    """Mounts a folder; a missing one is an error, since the engine would create it as root.

    What stands for the folder of the configuration is where compose's caller says.
    """
    is_below = folder.path.startswith(f"{root}/")
    return {
        "type": "bind",
        "source": folder.path.replace(root, "${TRINITY_ROOT:-..}", 1) if is_below else folder.path,
        "target": folder.path,
        "read_only": not folder.is_writable,
        "bind": {"create_host_path": False},
    }


def _devices(deployment: ExperimentDeployment, name: str) -> list[JsonValue]:
    """Returns GPU ids: rollout takes the first GPUs, training the next ones."""
    first = deployment.gpus("explorer") if name == "trainer" else 0
    return [str(first + i) for i in range(deployment.gpus(name))]


def nomad_variables(deployment: ExperimentDeployment) -> str:
    """Returns the content of the variables file; Nomad interpolates its strings."""
    text = json.dumps(_values(deployment), indent=2, ensure_ascii=False)
    return text.replace("${", "$${").replace("%{", "%%{") + "\n"


def _values(deployment: ExperimentDeployment) -> dict[str, JsonValue]:
    return {
        "plan_file": PLAN_FROM_JOBS,
        "images": {
            name: deployment.images.full(name, deployment.variant) for name in (*SERVICES, "studio")
        },
        "environment": {name: {**deployment.environment(name, CACHE)} for name in SERVICES},
        "volumes": {
            name: [
                f"{folder.path}:{folder.path}:{'rw' if folder.is_writable else 'ro'}"
                for folder in deployment.folders(name)
            ]
            for name in SERVICES
        },
        "explorers": deployment.num_explorer_services,
        "explorer_hosts": deployment.explorer_hosts,
        "trainers": deployment.trainer_hosts,
        "explorer_gpus": deployment.gpus("explorer"),
        "trainer_gpus": deployment.gpus("trainer"),
        "sizes": {name: _nomad_sizes(deployment, name) for name in SERVICES},
    }


def _nomad_sizes(deployment: ExperimentDeployment, name: str) -> dict[str, JsonValue]:
    """Returns the sizes in Nomad's units: MHz, of which a processor counts a thousand, and MiB."""
    sizes = deployment.sizes(name)
    units = {"cpu": ("cpus", 1000), "memory": ("memory", 1 / MIB), "shm": ("shm", 1)}
    return {key: int(sizes[of] * unit) for key, (of, unit) in units.items() if of in sizes}


def check_gpu_capacity(deployment: ExperimentDeployment, *, on_one_node: bool) -> None:
    """Compares the GPUs of each process, and of the one node, with the required number.

    Raises: UserError when there are too few.
    """
    node = deployment.plan.stages[0].config.cluster.gpu_per_node
    each = deployment.gpus("explorer")
    ranks = deployment.gpus("trainer") * deployment.trainer_hosts
    if each > node:
        raise UserError(
            f"one explorer takes {each} GPUs, and it is on one machine (`cluster.gpu_per_node: "
            f"{node}`): lower `explorer.rollout_model.engine_num` or `tensor_parallel_size`, and "
            "start more explorers with `--explorers`"
        )
    num = deployment.explorers if deployment.needs_explorer else 0
    if on_one_node and num * each + ranks > node:
        rollout = f"{num} explorers take" if num > 1 else "the explorer takes"
        raise UserError(
            f"one node has {node} GPUs (`cluster.gpu_per_node`), of which {rollout} {num * each} "
            f"and the trainer {ranks}: lower `trainer.rank_num`, or render several nodes with "
            "`--target k8s` or `nomad` and `--overlay cluster`"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRenderer:
    """A rendering of a deployment for a target."""

    deployment: ExperimentDeployment
    target: Target
    overlay: Overlay
    output: Path

    def write_manifests(self) -> None:
        """Writes everything.

        Raises: UserError when the folder holds something else, or there are no manifests.
        """
        self.deployment.check_images_and_secrets()
        self.deployment.check_turns()
        on_one_node = self.target == "compose" or self.overlay == "one-node"
        if on_one_node and self.deployment.trainer_hosts > 1:
            raise UserError(
                f"the gang has {self.deployment.trainer_hosts} machines, and this renders one: "
                "give `--target k8s` or `nomad` with `--overlay cluster`, or lower "
                "`trainer.rank_num` to one machine's GPUs"
            )
        if on_one_node and self.deployment.explorer_hosts > 1:
            raise UserError(
                f"one engine has {self.deployment.explorer_hosts} machines, and this renders one: "
                "give `--target k8s` or `nomad` with `--overlay cluster`, or lower "
                "`explorer.rollout_model.tensor_parallel_size` to one machine's GPUs"
            )
        self.deployment.check_hosts()
        check_gpu_capacity(self.deployment, on_one_node=on_one_node)
        files = self._files()
        self._prepare()
        write_values(self.output)
        for name in COPIED[self.target]:
            _copy(shipped("deploy") / name, self.output / name)
        for name, content in files.items():
            (self.output / name).write_text(content, encoding="utf-8")

    def _files(self) -> dict[str, str]:
        plan = {PLAN: self.deployment.plan.model_dump_json(indent=2) + "\n"}
        match self.target:
            case "compose":
                override = plain_yaml(compose_override(self.deployment))
                return {
                    **plan,
                    "compose.yaml": _resolved(shipped("deploy") / "compose.yaml"),
                    "compose.override.yaml": self.deployment.explained(override),
                }
            case "k8s":
                return {**plan, **kubernetes_files(self.deployment, self.overlay)}
            case "nomad":
                return {**plan, VARIABLES: nomad_variables(self.deployment)}

    def _prepare(self) -> None:
        """Creates the folder; only an older rendering may be overwritten."""
        claim_folder(self.output, "give an empty or a new folder as `--output`")

    def first_commands(self) -> Iterator[str]:
        """Yields the commands to type once, before anything is applied: secrets and folders."""
        is_cluster = self.overlay == "cluster"
        match self.target:
            case "compose":
                yield f"trinity deploy secrets {self.output / 'secrets'}"
                root, job_dir = self.deployment.values.root, self.deployment.plan.job_dir
                yield f"mkdir -p {job_dir.removeprefix(f'{root}/')}"
            case "k8s":
                yield _secrets_command(None if is_cluster else "postgres:5432 nats:4222")
                yield "kubectl create namespace trinity && kubectl apply -k secrets"
                yield "trinity certs certs"
                parts = [*SERVICES, "operator", *([] if is_cluster else ["postgres", "nats"])]
                made = "kubectl -n trinity create secret generic $part-tls --from-file=certs/$part"
                yield f"for part in {' '.join(parts)}; do {made}; done"
            case "nomad":
                yield _secrets_command(None) if is_cluster else "trinity deploy secrets secrets"
                files = f"secrets/nomad/{self.overlay}/*.json"
                yield f"for file in {files}; do nomad var put @$file; done"
                if is_cluster:
                    yield "trinity certs certs    # each folder to /etc/trinity of all nodes"

    def commands(self) -> Iterator[str]:
        """Yields the commands that apply the rendering."""
        match self.target:
            case "compose":
                caller = "TRINITY_UID=$(id -u) TRINITY_GID=$(id -g)"  # can read the secrets
                if self.deployment.values.root in self.deployment.plan.model_dump_json():
                    caller += " TRINITY_ROOT=$PWD"
                yield f"{caller} docker compose --project-directory {self.output} up -d"
            case "k8s":
                yield f"kubectl apply -k {self.output}"
            case "nomad":
                jobs = (self.overlay, *(["experiment"] if self.overlay == "cluster" else []))
                for job in jobs:
                    file = self.output / "nomad" / f"{job}.nomad.hcl"
                    yield f"nomad job run -var-file={self.output / VARIABLES} {file}"


def _secrets_command(places: str | None) -> str:
    """Returns how passwords are made; without places of database and broker, with their names."""
    postgres, nats = (places or "POSTGRES:PORT NATS:PORT").split()
    return f"trinity deploy secrets secrets --postgres {postgres} --nats {nats}"


def _resolved(file: Path) -> str:
    """Returns a compose file without anchors and what only they name, with its first comment."""
    text = file.read_text(encoding="utf-8")
    head = "".join(itertools.takewhile(lambda line: line[0] == "#", text.splitlines(True)))
    content = yaml.safe_load(text)
    return head + plain_yaml({key: content[key] for key in content if not key.startswith("x-")})


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def image_commands(deployment: ExperimentDeployment) -> Iterator[str]:
    """Yields how each image without a digest is built in a checkout, and pushed."""
    variant, images = deployment.variant, deployment.images
    for service in SERVICES:
        if service in images.digests or (service == "explorer" and not deployment.needs_explorer):
            continue
        options = " --build-arg VARIANT=cpu" if variant == "cpu" and service in WITH_SHM else ""
        name = images.full(service, variant)
        push = f" && docker push {name}" if images.registry else ""
        yield f"docker build -f deploy/docker/{service}.Dockerfile{options} -t {name} .{push}"


def size_notes(deployment: ExperimentDeployment) -> Iterator[str]:
    """Yields a sentence if the sizes of a service are not known."""
    unknown = [name for name in WITH_SHM if "memory" not in deployment.sizes(name)]
    if not deployment.needs_explorer:
        unknown.remove("explorer")
    if unknown:
        yield (
            f"the sizes of {' and '.join(unknown)} are those of the shipped manifests, as the "
            "config.json of a model is not here: give `--model-config FILE`, or sizes in "
            "`values.yaml`"
        )


def render_notes(
    deployment: ExperimentDeployment, target: Target, overlay: Overlay
) -> Iterator[str]:
    """Yields the notes, if any, as sentences."""
    if names := deployment.model_variables:
        yield _of_models(" and ".join(names), target)
    if FUNCTION_TRUST in deployment.environment("buffer"):
        yield f"{FUNCTION_TRUST}: {TRUST_COMMENT}"
    yield from _unseen(deployment.plan)
    monitor = deployment.plan.stages[0].config.monitor.monitor_type
    if monitor not in ("none", "tensorboard"):  # files of the latter are always written
        yield (
            f"`monitor.monitor_type: {monitor}`: the images have no monitor; call `trinity deploy "
            "submit` with `--monitor FOLDER` as well, where the services can be reached"
        )
    apart = target == "k8s" or (target, overlay) == ("nomad", "cluster")
    if apart and any(stage.transfers_weights_in_memory for stage in deployment.plan.stages):
        yield (
            "`sync_method: nccl`: between hosts explorers take the files, unless you give the "
            "trainer the variable TRINITY_TRAINER_TRANSFER_HOST, its address in a private network, "
            "and let explorers reach every port of it"
        )


def _unseen(plan: ExperimentPlan) -> Iterator[str]:
    """Yields the user's own parts that fail here; the explorer's image may have them."""
    try:
        check_part_names(plan.stages)
    except UserError as error:
        for line in str(error).splitlines():
            yield f"{line} (as seen from here: the explorer fails the run unless it finds it)"


def _of_models(names: str, target: Target) -> str:
    match target:
        case "compose":
            return f"set {names} where you call compose: it hands them to the explorer"
        case "k8s":
            return (
                f"make a Secret `{MODELS}` with {names} for the explorer; the network policy "
                f"`{MODELS}` lets it reach port 443 alone"
            )
        case "nomad":
            return f"give {names} with `nomad var put nomad/jobs/trinity NAME=VALUE ...`"
