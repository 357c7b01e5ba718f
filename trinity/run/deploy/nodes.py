"""Shares a run out over the nodes of a job: which trainers and explorers are on which."""

from dataclasses import dataclass
from typing import Literal

from trinity.errors import UserError
from trinity.run.deploy.deployment import ExperimentDeployment


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePart:
    """A service on a node."""

    service: Literal["trainer", "explorer"]
    host: int
    """Its number among the machines of its gang or engine; 0 leads."""
    num_hosts: int
    gpus: int


def node_parts(deployment: ExperimentDeployment) -> tuple[tuple[NodePart, ...], ...]:
    """Returns the parts of each node.

    The first has everything else of the run as well, with an explorer where its GPUs suffice for
    both. Others have one part each: `engine_num` fills a node better than a second explorer.
    Raises: UserError for several explorers of a run by turns.
    """
    for stage in deployment.plan.stages:
        if stage.takes_turns and deployment.explorers > 1:
            raise UserError(
                f"stage `{stage.name}`: `mode: colocate` is engine and trainer on one GPU by "
                f"turns: give 1 as `--explorers`, not {deployment.explorers}"
            )
    trainer, *others = _parts("trainer", deployment.trainer_hosts, 1, deployment)
    explorers = _parts(
        "explorer",
        deployment.explorer_hosts,
        deployment.explorers if deployment.needs_explorer else 0,
        deployment,
    )
    first = [trainer]
    if explorers and _fit_together(deployment):
        first.append(explorers.pop(0))
    return (tuple(first), *((part,) for part in (*others, *explorers)))


def _fit_together(deployment: ExperimentDeployment) -> bool:
    if any(stage.takes_turns for stage in deployment.plan.stages):
        return True
    wanted = deployment.gpus("trainer") + deployment.gpus("explorer")
    return wanted <= deployment.plan.stages[0].config.cluster.gpu_per_node


def _parts(
    service: Literal["trainer", "explorer"], num_hosts: int, num: int, of: ExperimentDeployment
) -> list[NodePart]:
    gpus = of.gpus(service)
    return [
        NodePart(service=service, host=host, num_hosts=num_hosts, gpus=gpus)
        for _ in range(num)
        for host in range(num_hosts)
    ]
