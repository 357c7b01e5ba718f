"""`trinity deploy render`: the manifests of deploy/, with one experiment's additions."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

import trinity
from trinity.deploy.compose import compose_override
from trinity.deploy.deployment import Deployment
from trinity.deploy.kubernetes import Overlay, kubernetes_files
from trinity.deploy.nomad import nomad_variables
from trinity.deploy.room import check_room
from trinity.errors import UserError

Target = Literal["compose", "k8s", "nomad"]
COPIED: dict[Target, tuple[str, ...]] = {
    "compose": ("compose.yaml", "nats", "observability"),
    "k8s": ("k8s", "nats"),
    "nomad": ("nomad", "nats"),
}
PLAN = "plan.json"
VARIABLES = "experiment.vars.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """A rendering of a deployment for a target."""

    deployment: Deployment
    target: Target
    overlay: Overlay
    output: Path

    def write(self) -> str:
        """Writes everything; returns the command that applies it.

        Raises: UserError when the folder holds something else, or there are no manifests.
        """
        self.deployment.check()
        on_one_node = self.target == "compose" or self.overlay == "one-node"
        check_room(self.deployment, on_one_node=on_one_node)
        files = self._files()
        self._prepare()
        for name in COPIED[self.target]:
            _copy(manifests() / name, self.output / name)
        for name, content in files.items():
            (self.output / name).write_text(content, encoding="utf-8")
        return self._command()

    def _files(self) -> dict[str, str]:
        plan = {PLAN: self.deployment.plan.model_dump_json(indent=2) + "\n"}
        match self.target:
            case "compose":
                override = yaml.safe_dump(compose_override(self.deployment), sort_keys=False)
                return {**plan, "compose.override.yaml": str(override)}
            case "k8s":
                return {**plan, **kubernetes_files(self.deployment, self.overlay)}
            case "nomad":
                return {**plan, VARIABLES: nomad_variables(self.deployment)}

    def _prepare(self) -> None:
        """Creates the folder; an older rendering may be overwritten, nothing else."""
        if self.output.is_dir() and any(self.output.iterdir()):
            if not (self.output / PLAN).is_file():
                raise UserError(
                    f"{self.output} holds other files: give an empty or a new folder as `--output`"
                )
        elif self.output.exists() and not self.output.is_dir():
            raise UserError(f"{self.output} is a file: give a folder as `--output`")
        self.output.mkdir(parents=True, exist_ok=True)

    def _command(self) -> str:
        match self.target:
            case "compose":
                owner = "TRINITY_UID=$(id -u) TRINITY_GID=$(id -g)"  # can read the secrets
                return f"{owner} docker compose --project-directory {self.output} up -d"
            case "k8s":
                return f"kubectl apply -k {self.output}"
            case "nomad":
                job = self.output / "nomad" / f"{self.overlay}.nomad.hcl"
                return f"nomad job run -var-file={self.output / VARIABLES} {job}"


def manifests() -> Path:
    """Returns the folder of the manifests that come with the project.

    Raises: UserError where only the package is installed.
    """
    folder = Path(trinity.__file__).parents[1] / "deploy"
    if not (folder / "compose.yaml").is_file():
        raise UserError(f"there are no manifests in {folder}: render in a checkout of the project")
    return folder


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)
