"""Which of this machine's GPUs each service sees."""

import os
from pathlib import Path

from trinity.config.plan import ExperimentPlan
from trinity.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/dev/nvidiactl")


def check_gpus(plan: ExperimentPlan) -> None:
    """Raises: UserError when this machine has not the GPUs that the plan wants."""
    wanted = plan.stages[0].config.cluster.gpu_per_node
    if not wanted:
        return
    if not DRIVER.exists():
        raise UserError(
            f"`cluster.gpu_per_node: {wanted}` wants GPUs, and this machine has no NVIDIA driver: "
            "run it where there are GPUs, or set it to 0"
        )
    given, here = os.environ.get(VISIBLE), len(_devices(plan))
    rollout, ranks = plan.num_rollout_gpus, plan.num_ranks
    if rollout + ranks <= here:
        return
    if given is not None:
        raise UserError(
            f"{VISIBLE} names {here} GPUs, and with `cluster.gpu_per_node: {wanted}` rollout takes "
            f"{rollout} and training {ranks}: name more of them, or lower that key"
        )
    raise UserError(
        f"rollout takes {rollout} GPUs and training {ranks}, and `trinity run` uses the {here} of "
        "this machine: set `cluster.node_num: 1`, or place the services on several machines with "
        "`trinity deploy render`"
    )


def share_gpus(plan: ExperimentPlan) -> dict[str, dict[str, str]]:
    """Environment of the explorer and the trainer: rollout takes the first GPUs, training the rest.

    Empty where the plan uses no GPU. A list that the user set is what there is to share.
    """
    if not plan.stages[0].config.cluster.gpu_per_node:
        return {}
    devices, num_rollout = _devices(plan), plan.num_rollout_gpus
    return {
        "explorer": {VISIBLE: ",".join(devices[:num_rollout])},
        "trainer": {VISIBLE: ",".join(devices[num_rollout:])},
    }


def _devices(plan: ExperimentPlan) -> list[str]:
    """As many as the plan has, or the fewer that the user lets see; -1 is CUDA's word for none."""
    num_gpus = plan.stages[0].config.cluster.gpu_per_node
    given = os.environ.get(VISIBLE)
    if given is None:
        return [str(i) for i in range(num_gpus)]
    named = [name.strip() for name in given.split(",")]
    return [name for name in named if name not in ("", "-1")][:num_gpus]
