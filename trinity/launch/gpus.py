"""Which of this machine's GPUs each service sees."""

import os

from trinity.config import ExperimentPlan, StagePlan

VISIBLE = "CUDA_VISIBLE_DEVICES"


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
    rollout = stage.config.explorer.rollout_model
    return rollout.engine_num * rollout.tensor_parallel_size
