"""The manifests as they are shipped and as they are rendered, for the tests beside."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trinity.config.loading.load import load_config
from trinity.config.planning import plan_experiment
from trinity.run.deploy.deployment import ExperimentDeployment
from trinity.run.deploy.kubernetes import Overlay
from trinity.run.deploy.render import ManifestRenderer, Target
from trinity.runtime.shipped import shipped

EXAMPLES = Path(__file__).parents[3] / "examples"
SHIPPED = shipped("deploy")
SERVICES = ("synchronizer", "buffer", "trainer", "explorer")


def deployment_of(example: str, **overrides: Any) -> ExperimentDeployment:
    """One of the examples as it stands."""
    config = load_config(EXAMPLES / example / f"{example}.yaml", overrides)
    return ExperimentDeployment(plan=plan_experiment(config), explorers=1, plugin_dir=None)


def rendered(
    deployment: ExperimentDeployment, target: Target, output: Path, overlay: Overlay = "one-node"
) -> Path:
    """The folder of a rendering."""
    ManifestRenderer(
        deployment=deployment, target=target, overlay=overlay, output=output
    ).write_manifests()
    return output


def objects(folder: Path) -> Iterator[dict[str, Any]]:
    """Kubernetes objects of a folder's own files."""
    for file in sorted(folder.rglob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            if one and "kind" in one:
                yield one


def compose_files(folder: Path) -> list[dict[str, Any]]:
    """The project and what is laid over it."""
    names = ("compose.yaml", "compose.override.yaml")
    return [yaml.safe_load((folder / name).read_text()) for name in names]


def pods(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each workload of the shipped manifests with the specification of its pods."""
    for one in objects(folder):
        template = one.get("spec", {}).get("template")
        if template and "serviceAccountName" in template["spec"]:
            yield one["metadata"]["name"], template["spec"]


def json_file(path: Path) -> Any:
    """Its content."""
    return json.loads(path.read_text())
