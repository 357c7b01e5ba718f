"""Assigns this machine's GPUs to the services."""

import os
from pathlib import Path

from trinity.config.plan.stage_plan import ExperimentPlan
from trinity.errors import UserError

VISIBLE = "CUDA_VISIBLE_DEVICES"
DRIVER = Path("/dev/nvidiactl")


def check_gpus(plan: ExperimentPlan) -> None:
    """Checks that this machine has the GPUs that the plan needs.

    Raises: UserError when it has not.
    """
    wanted = plan.stages[0].config.cluster.gpu_per_node
    if not wanted:
        return
    if not DRIVER.exists():
        raise UserError(
            f"`cluster.gpu_per_node: {wanted}` needs GPUs, and this machine has no NVIDIA driver: "
            "run it where there are GPUs, or set it to 0"
        )
    visible, here = os.environ.get(VISIBLE), len(_devices(plan))
    rollout, ranks = plan.num_rollout_gpus, plan.num_ranks
    if rollout + ranks <= here:
        return
    if visible is not None:
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
    """Returns the environments: rollout (explorer) takes the first GPUs, training the rest.

    Empty where the plan uses no GPU. A list set by the user is divided instead.
    """
    if not plan.stages[0].config.cluster.gpu_per_node:
        return {}
    devices, num_rollout = _devices(plan), plan.num_rollout_gpus
    return {
        "explorer": {VISIBLE: ",".join(devices[:num_rollout])},
        "trainer": {VISIBLE: ",".join(devices[num_rollout:])},
    }


def _devices(plan: ExperimentPlan) -> list[str]:
    """Returns the devices that the plan needs, or the fewer visible ones; -1 is CUDA's "none"."""
    num_gpus = plan.stages[0].config.cluster.gpu_per_node
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [str(i) for i in range(num_gpus)]
    named = [name.strip() for name in visible.split(",")]
    return [name for name in named if name not in ("", "-1")][:num_gpus]
