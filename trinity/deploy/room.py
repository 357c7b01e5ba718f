"""Checks that the machines have the GPUs that a deployment needs."""

from trinity.deploy.deployment import Deployment
from trinity.errors import UserError


def check_room(deployment: Deployment, *, on_one_node: bool) -> None:
    """Compares the GPUs of each process, and of the one node, with what is needed.

    Raises: UserError when there are too few.
    """
    node = deployment.plan.stages[0].config.cluster.gpu_per_node
    each, ranks = deployment.gpus("explorer"), deployment.gpus("trainer")
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
