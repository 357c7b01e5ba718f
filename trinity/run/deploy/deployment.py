"""An experiment's requirements of its runtime environment: folders, GPUs, images."""

import hashlib
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Literal

import yaml
from pydantic import JsonValue

from trinity.config.data_files import SUFFIXES
from trinity.config.plan.experience_sink import experience_sink, task_backup
from trinity.config.plan.model import hub_references
from trinity.config.plan.parts import ExternalAccess, ResolvedExperienceBuffer, ResolvedTaskset
from trinity.config.plan.placement import engine_groups_of, num_hosts
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.task_storage import DATABASES, mounted_path
from trinity.config.sizing.disk import disk_sizes
from trinity.config.sizing.memory import GIB
from trinity.config.sizing.services import explorer_hosts, service_sizes
from trinity.errors import UserError
from trinity.run.deploy.values import DeploymentValues, num_bytes, secret_key_in
from trinity.run.launch.modes import server_urls
from trinity.runtime.process.child_process import module_command
from trinity.runtime.shipped import shipped
from trinity.user_code.adopt.manifest import AdoptedPlace

Variant = Literal["cpu", "gpu"]
SQLITE = "sqlite:///"
OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
OTLP_PORT = 4317
FUNCTION_TRUST = "TRINITY_BUFFER_FUNCTION_TRUST"
TRUST_COMMENT = (
    "The plug-ins' functions run in a box where the node allows user namespaces. Elsewhere, as "
    "under most container runtimes, they can do what the buffer can do; `false` refuses them there."
)
MODELS = "models"
"""The Secret with addresses and keys of external models, and the policy to reach them."""
DIGEST_LENGTH = 8
CLAIMED = (("shared", "run", 1024 * GIB), ("cache", "cache", 50 * GIB))
"""Claims with the part of a disk that is in them, and their size in the shipped manifests."""
LONGEST_NAME = 40
"""Kubernetes allows 63 and appends suffixes."""


def fetch_command(*arguments: str) -> list[str]:
    """Returns the command of a container that fetches models of the hub."""
    return module_command("trinity.run.deploy.fetch", *arguments, python="python")


@dataclass(frozen=True, slots=True, order=True)
class MountedFolder:
    """A directory that a service sees under the same path as all other services."""

    path: str
    is_writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerImages:
    """The registry and the build of the images."""

    registry: str = ""
    tag: str = "0.1.0"
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of a service's image, as the registry gave it to the one who pushed it: `sha256:...`."""

    def name(self, service: str) -> str:
        """Returns the image's name without the tag."""
        return f"{self.registry.rstrip('/')}/trinity-{service}".lstrip("/")

    def tag_of(self, service: str, variant: Variant) -> str:
        """Returns the tag: builds of engines and training differ between GPU and CPU."""
        return f"{self.tag}-{variant}" if service in ("explorer", "trainer") else self.tag

    def full(self, service: str, variant: Variant) -> str:
        """Returns name and tag, and the digest where it is known."""
        digest = self.digests.get(service)
        image = f"{self.name(service)}:{self.tag_of(service, variant)}"
        return f"{image}@{digest}" if digest else image


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentDeployment:
    """One experiment and the services it runs on.

    deployment = ExperimentDeployment(plan=plan, explorers=2, plugin_dir=None)
    deployment.folders("trainer"), deployment.gpus("trainer"), deployment.sizes("trainer")
    """

    plan: ExperimentPlan
    explorers: int
    plugin_dir: Path | None
    adopted: AdoptedPlace | None = None
    values: DeploymentValues = field(default_factory=DeploymentValues)
    here: ExperimentPlan | None = None
    """The plan with the paths of this machine, where the sizes of models are read."""
    model_config: Path | None = None
    """The policy's config.json, if its directory is not here."""

    @property
    def images(self) -> ContainerImages:
        """The images, as the values name them."""
        values = self.values
        return ContainerImages(registry=values.registry, tag=values.tag, digests=values.digests)

    def sizes(self, service: str) -> dict[str, int]:
        """Returns `memory` and `shm` in bytes and `cpus` of one process, as far as known.

        A value that is given wins over the plan's.
        """
        own = bool(self.plugin_dir or self.adopted)
        planned = service_sizes(self.here or self.plan, self.model_config, own_functions=own).get(
            service
        )
        given = self.values.service(service)
        found = {
            "memory": num_bytes(given.memory) if given.memory else planned and planned.memory_bytes,
            "shm": num_bytes(given.shm) if given.shm else planned and planned.shm_bytes,
            "cpus": given.cpus or (planned and planned.cpus),
        }
        return {name: size for name, size in found.items() if size}

    @property
    def name(self) -> str:
        """The label in the form of a DNS name."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.plan.label.lower()).strip("-")
        return plain[:LONGEST_NAME].strip("-") or "experiment"

    @property
    def job_name(self) -> str:
        """The name with a digest of plan and image: Kubernetes changes no Job.

        The same rendering may be applied any number of times, and another one starts another Job.
        """
        content = self.plan.model_dump_json() + self.images.full("synchronizer", self.variant)
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:DIGEST_LENGTH]}"

    @property
    def needs_explorer(self) -> bool:
        """True if any stage rolls out."""
        return any(stage.needs_rollout for stage in self.plan.stages)

    @property
    def variant(self) -> Variant:
        """The builds of the images that run it."""
        return "gpu" if self.plan.stages[0].config.cluster.gpu_per_node else "cpu"

    @property
    def log_level(self) -> str:
        """The log level of every service."""
        return self.plan.stages[0].config.log.level

    def claims(self) -> dict[str, int]:
        """Returns the bytes of volume claims that are given, or too small for the plan."""
        disks = disk_sizes(self.here or self.plan, self.model_config)
        found: dict[str, int] = {}
        for claim, place, shipped_bytes in CLAIMED:
            needed = sum(term.bytes for term in disks[place])
            if needed > shipped_bytes:
                found[claim] = -(-needed // GIB) * GIB
        given = self.values.claims.items()
        return found | {name: num_bytes(claim.size) for name, claim in given if claim.size}

    def gpus(self, service: str) -> int:
        """Returns the number of GPUs of one process of the service."""
        if self.variant == "cpu":
            return 0
        if service == "trainer":
            return self.plan.num_ranks // self.trainer_hosts
        return self.plan.num_rollout_gpus // self.explorer_hosts if service == "explorer" else 0

    @property
    def trainer_hosts(self) -> int:
        """Machines of the gang, each with a trainer service."""
        return num_hosts(self.plan.num_ranks, self.plan.stages[0].config.cluster.gpu_per_node)

    @property
    def explorer_hosts(self) -> int:
        """Machines of one explorer: several if one engine alone is larger than one."""
        return max(map(explorer_hosts, self.plan.stages))

    @property
    def num_explorer_services(self) -> int:
        """Explorer services in all: one on each machine of each explorer."""
        return self.explorers * self.explorer_hosts if self.needs_explorer else 0

    def check_turns(self) -> None:
        """Raises: UserError if engine and trainer share a GPU: they see each other's processes."""
        for stage in self.plan.stages:
            if stage.takes_turns:
                raise UserError(
                    f"stage `{stage.name}`: `mode: colocate` needs engine and trainer to see each "
                    "other's processes, which containers keep apart: start it with `trinity run` "
                    "on the machine with the GPU, or give `mode: both` with two GPUs"
                )

    def check_hosts(self) -> None:
        """Raises: UserError if ranks or workers of a stage do not go with the machines."""
        self._check_explorer_hosts()
        for stage in self.plan.stages:
            if stage.needs_training and stage.trainer_rank_num % self.trainer_hosts:
                raise UserError(
                    f"stage `{stage.name}` trains on {stage.trainer_rank_num} ranks, and the gang "
                    f"has {self.trainer_hosts} machines: give each stage a `trainer.rank_num` that "
                    "they share out evenly"
                )

    def _check_explorer_hosts(self) -> None:
        hosts = self.explorer_hosts
        if hosts == 1:
            return
        if self.explorers > 1:
            raise UserError(
                f"`--explorers {self.explorers}`: an engine on {hosts} machines is all of the "
                "deployment's rollout: give 1, or a `tensor_parallel_size` that fits one machine"
            )
        for stage in self.plan.stages:
            groups = engine_groups_of(stage) if stage.needs_rollout else ()
            if sum(group.num for group in groups) > 1 or any(g.gpus_each % hosts for g in groups):
                raise UserError(
                    f"stage `{stage.name}`: the explorer is on {hosts} machines for the largest "
                    "engine: give each stage one engine, whose `tensor_parallel_size` x "
                    "`pipeline_parallel_size` they share out evenly"
                )

    def folders(self, service: str) -> tuple[MountedFolder, ...]:
        """Returns the folders that the service reads and writes; nested ones are listed once."""
        found = {MountedFolder(path) for path in self._read_by(service)}
        if service == "trainer":
            found.add(MountedFolder(self.plan.job_dir, is_writable=True))
        if service == "explorer":
            found.add(MountedFolder(self.plan.job_dir))
        return tuple(sorted(_outermost(found)))

    @property
    def data_roots(self) -> tuple[str, ...]:
        """Folders that the buffer may read tasksets from."""
        return tuple(dict.fromkeys(path for stage in self.plan.stages for path in _data(stage)))

    @property
    def data_addresses(self) -> tuple[str, ...]:
        """Other sources that the buffer uses: datasets, databases, Data-Juicer servers."""
        stages = self.plan.stages
        return tuple(dict.fromkeys(place for stage in stages for place in _addresses(stage)))

    @property
    def uses_hub(self) -> bool:
        """True if a model or a dataset has to be fetched."""
        return bool(self.hub_models) or self.uses_hub_data

    @property
    def hub_models(self) -> tuple[str, ...]:
        """Models that have to be fetched."""
        found = hub_references(self.plan)
        return tuple(model.name for model in found if model.kind == "model")

    @property
    def uses_hub_data(self) -> bool:
        """True if the buffer fetches a dataset."""
        places = [place for stage in self.plan.stages for place in _named(stage)]
        return any(not place.startswith("/") for place in places)

    @property
    def model_variables(self) -> tuple[str, ...]:
        """Variables of the explorer for external models; their values are in no manifest."""
        found = [access for stage in self.plan.stages for access in _elsewhere(stage)]
        return tuple(
            dict.fromkeys(
                name for access in found for name in (access.base_url_env, access.api_key_env)
            )
        )

    def explained(self, manifest: str) -> str:
        """Returns a manifest in YAML with a comment above the setting that trusts functions."""
        lines = manifest.splitlines(keepends=True)
        return "".join(
            f"{line[: len(line) - len(line.lstrip())]}# {TRUST_COMMENT}\n{line}"
            if FUNCTION_TRUST in line
            else line
            for line in lines
        )

    def environment(self, service: str, cache: str = "/cache") -> dict[str, str]:
        """Returns the variables that this experiment adds; downloads from the hub go to `cache`."""
        prefix = f"TRINITY_{service.upper()}_"
        added = {f"{prefix}LOG_LEVEL": self.log_level}
        if service == "buffer":
            roots = [*self.data_roots, *([cache] if self.uses_hub else [])]
            added[f"{prefix}TASKSET_ROOTS"] = ":".join(roots) or "/data"
            tenant = self.plan.tenant
            if addresses := self.data_addresses:
                added[f"{prefix}TASKSET_ADDRESSES"] = ",".join(f"{tenant}={a}" for a in addresses)
            if self.plugin_dir or self.adopted:
                added[f"{prefix}FUNCTION_TENANTS"] = tenant
                added[FUNCTION_TRUST] = "true"
        if service in ("explorer", "trainer") and self.variant == "cpu":
            added["OMP_NUM_THREADS"] = "1"
        if service != "synchronizer" and self.plugin_dir is not None:
            added["TRINITY_PLUGIN_DIRS"] = str(self.plugin_dir)
        if service != "synchronizer" and self.adopted is not None:
            added |= self.adopted.environment
        if self.values.otlp_endpoint:
            added[OTLP_ENDPOINT] = self.values.otlp_endpoint
        return added

    @property
    def otlp_port(self) -> int:
        """The collector's port; OTLP's default if the address names no port."""
        return urllib.parse.urlsplit(self.values.otlp_endpoint).port or OTLP_PORT

    def check_images_and_secrets(self) -> None:
        """Checks that the images can run the experiment and that its plan holds no secret.

        Raises: UserError.
        """
        for stage in self.plan.stages:
            for kind, path in _parts(stage):
                _check_in_images(stage, kind, path)
        if key := secret_key_in(self.plan.model_dump()):
            raise UserError(
                f"`{key}` holds a secret, and manifests hold none: leave it out of the file, and "
                "give a password in a PGPASSFILE, a key in a variable of the service's environment"
            )

    def _read_by(self, service: str) -> Iterator[str]:
        for stage in self.plan.stages:
            if service == "buffer":
                yield from _data(stage)
            if service in ("explorer", "trainer"):
                yield from (model for model in _models(stage) if model.startswith("/"))
            if service == "explorer":
                yield from (model for model in _auxiliary(stage) if model.startswith("/"))
            if service == "trainer":
                begun_with = (stage.adapter_path, stage.start_checkpoint)
                yield from (path for path in begun_with if path is not None)
        if service != "synchronizer" and self.plugin_dir is not None:
            yield str(self.plugin_dir)
        if service != "synchronizer" and self.adopted is not None:
            yield from self.adopted.folders


def _parts(stage: StagePlan) -> Iterator[tuple[str, str]]:
    """Yields the parts that may be users' own code, with their kind."""
    for taskset in (*stage.tasksets, *stage.eval_tasksets):
        yield "workflow", taskset.workflow
        yield "reward", taskset.reward or ""
    for rows in _row_sources(stage):
        if rows.task_pipeline is not None:
            yield from (
                ("task operator", operator.name) for operator in rows.task_pipeline.operators
            )
    yield from (("operator", operator.name) for operator in stage.operators)
    if stage.replay is not None:
        yield "priority", stage.replay.priority_fn
    yield "advantage", stage.algorithm.advantage_fn
    yield "loss", stage.algorithm.policy_loss_fn


def _check_in_images(stage: StagePlan, kind: str, path: str) -> None:
    """Checks that a dotted path is in the images: they contain this project only."""
    module = path.rpartition(".")[0]
    if module and module.split(".")[0] != "trinity":
        raise UserError(
            f"stage `{stage.name}`: the {kind} `{path}` is not in the images: register it under a "
            "name in a file of a folder given with `--plugin-dir`"
        )


def _models(stage: StagePlan) -> Iterator[str]:
    yield stage.model_path
    if stage.critic_model_path is not None:
        yield stage.critic_model_path
    if stage.teacher_model_path is not None:
        yield stage.teacher_model_path


def _auxiliary(stage: StagePlan) -> Iterator[str]:
    """Yields the models that the explorer runs itself."""
    yield from (model.model_path for model in stage.auxiliary_models if model.external is None)


def _elsewhere(stage: StagePlan) -> Iterator[ExternalAccess]:
    if stage.external_model is not None:
        yield stage.external_model
    yield from (model.external for model in stage.auxiliary_models if model.external is not None)


def _data(stage: StagePlan) -> Iterator[str]:
    """Yields the folders of data files."""
    for place in _named(stage):
        if place.startswith("/"):
            is_file = place.endswith((*SUFFIXES, ".db"))
            yield str(Path(place).parent) if is_file else place


def _named(stage: StagePlan) -> Iterator[str]:
    """Yields data paths, files as absolute paths; remote databases are left out."""
    for path in _places(stage):
        place = path.removeprefix(SQLITE)
        if place and not place.startswith(DATABASES):
            yield place


def _places(stage: StagePlan) -> Iterator[str]:
    """Yields all paths, names on the hub and addresses of data."""
    for rows in _row_sources(stage):
        further = rows.task_pipeline.further_paths if rows.task_pipeline is not None else ()
        yield from filter(None, (mounted_path(path or "") for path in (rows.path, *further)))


def _addresses(stage: StagePlan) -> Iterator[str]:
    """Yields sources other than local files, in the form of the buffer's allow list."""
    for place in _places(stage):
        if place.startswith(DATABASES) and not place.startswith(SQLITE):
            yield place.partition("?")[0]
        elif not place.startswith((*DATABASES, "/")):
            yield f"hub:{place}"
    backup = task_backup(stage)
    for sink in (experience_sink(stage), backup.sink if backup else None):
        if sink is not None and not sink.is_file:
            yield sink.place.partition("?")[0]
    yield from server_urls(stage)


def _row_sources(stage: StagePlan) -> tuple[ResolvedTaskset | ResolvedExperienceBuffer, ...]:
    data = (stage.experience_buffer, *stage.auxiliary_buffers)
    return (*stage.tasksets, *stage.eval_tasksets, *data)


def _outermost(folders: set[MountedFolder]) -> Iterator[MountedFolder]:
    """Drops folders inside others; a writable folder stays even inside a read-only one."""
    for folder in folders:
        around = [other for other in folders if other.path in map(str, Path(folder.path).parents)]
        twin = MountedFolder(folder.path, is_writable=True)
        if any(other.is_writable or not folder.is_writable for other in around):
            continue
        if not folder.is_writable and twin in folders:
            continue
        yield folder


def with_root(plan: ExperimentPlan, here: Path, root: str) -> ExperimentPlan:
    """Returns the plan with `root` for a folder, in paths that its configuration gives relative.

    Paths that the configuration gives whole are those of the nodes already.
    """
    given: set[str] = set()

    def remember(text: str) -> str:
        given.add(text)
        return text

    for stage in plan.stages:
        _changed(stage.config.model_dump(mode="json"), remember)

    def placed(text: str) -> str:
        path = text.removeprefix(SQLITE)
        if not path.startswith(f"{here}/") or given & {path, *map(str, Path(path).parents)}:
            return text
        return text.replace(str(here), root, 1)

    content = _changed(plan.model_dump(mode="json"), placed)
    return ExperimentPlan.model_validate_json(json.dumps(content))


def _changed(content: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """Returns JSON with all its texts changed."""
    if isinstance(content, dict):
        return {key: _changed(value, change) for key, value in content.items()}
    if isinstance(content, list):
        return [_changed(value, change) for value in content]
    return change(content) if isinstance(content, str) else content


def plain_yaml(content: JsonValue) -> str:
    """Returns YAML without anchors, which not every reader of manifests resolves."""
    return str(yaml.dump(content, Dumper=_WithoutAliases, sort_keys=False))


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def template(file: str, /, **values: str | int) -> str:
    """Returns a manifest of `deploy/templates` with its `$names` replaced by values."""
    text = (shipped("deploy") / "templates" / f"{file}.yaml").read_text(encoding="utf-8")
    return Template(text).substitute(values)
