"""Checks that every rank has a GPU of its own where the plan trains on GPUs."""

import torch

from trinity.config.plan import StagePlan
from trinity.errors import UserError


def check_gpus_of(plan: StagePlan) -> None:
    """Raises: UserError if the plan trains on GPUs and this machine has fewer than ranks."""
    if plan.config.cluster.gpu_per_node:
        check_gpus(plan.trainer_rank_num)


def check_gpus(num_ranks: int) -> None:
    """Raises: UserError if ranks would have to share a GPU, or have none."""
    found = torch.cuda.device_count()
    if found < num_ranks:
        fewer = f"`trainer.rank_num: {found}`" if found else "`cluster.gpu_per_node: 0`"
        raise UserError(
            f"{num_ranks} rank{'s' if num_ranks > 1 else ''} cannot have a GPU each, as the "
            f"trainer sees {found}: let it see more (CUDA_VISIBLE_DEVICES, or the GPUs that its "
            f"container is given), or set {fewer}"
        )
