"""Which of this machine's GPUs each service sees."""

import os
from pathlib import Path

from trinity.config.plan import ExperimentPlan, StagePlan
from trinity.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/dev/nvidiactl")


def check_gpus(plan: ExperimentPlan) -> None:
    """Raises: UserError when the plan wants GPUs and this machine shows none."""
    wanted = plan.stages[0].config.cluster.gpu_per_node
    if wanted and not DRIVER.exists():
        raise UserError(
            f"`cluster.gpu_per_node: {wanted}` wants GPUs, and this machine has no NVIDIA driver: "
            "run it where there are GPUs, or set it to 0"
        )


def share_gpus(plan: ExperimentPlan) -> dict[str, dict[str, str]]:
    """Environment of the explorer and the trainer: rollout takes the first GPUs, training the rest.

    Empty where the plan uses no GPU. A list that the user set is what there is to share.
    """
    cluster = plan.stages[0].config.cluster
    if not cluster.gpu_per_node:
        return {}
    given = os.environ.get(VISIBLE)
    devices = given.split(",") if given else [str(i) for i in range(cluster.gpu_per_node)]
    num_rollout = max(_rollout_gpus(stage) for stage in plan.stages)
    return {
        "explorer": {VISIBLE: ",".join(devices[:num_rollout])},
        "trainer": {VISIBLE: ",".join(devices[num_rollout : cluster.gpu_per_node])},
    }


def _rollout_gpus(stage: StagePlan) -> int:
    if not stage.needs_rollout:
        return 0
    return stage.num_rollout_gpus
