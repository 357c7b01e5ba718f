"""The experiment's variables of a Nomad job, for `nomad job run -var-file`."""

import json

from pydantic import JsonValue

from trinity.deploy.deployment import ExperimentDeployment

SERVICES = ("synchronizer", "buffer", "trainer", "explorer")
CACHE = "/alloc/data/huggingface"
"""Shared by the tasks of a group, and kept while they stay on a node."""
PLAN_FROM_JOBS = "../plan.json"
"""Nomad resolves paths relative to the job file."""


def nomad_variables(deployment: ExperimentDeployment) -> str:
    """Returns the content of the variables file; Nomad interpolates its strings."""
    text = json.dumps(_values(deployment), indent=2, ensure_ascii=False)
    return text.replace("${", "$${").replace("%{", "%%{") + "\n"


def _values(deployment: ExperimentDeployment) -> dict[str, JsonValue]:
    return {
        "plan_file": PLAN_FROM_JOBS,
        "images": {name: deployment.images.full(name, deployment.variant) for name in SERVICES},
        "environment": {name: {**deployment.environment(name, CACHE)} for name in SERVICES},
        "volumes": {
            name: [
                f"{folder.path}:{folder.path}:{'rw' if folder.is_writable else 'ro'}"
                for folder in deployment.folders(name)
            ]
            for name in SERVICES
        },
        "explorers": deployment.explorers if deployment.needs_explorer else 0,
        "trainers": deployment.trainer_hosts,
        "explorer_gpus": deployment.gpus("explorer"),
        "trainer_gpus": deployment.gpus("trainer"),
    }
