"""Section `cluster`: the machines the experiment may use."""

from typing import Annotated

from trinity.config.reasons import DERIVED, NO_RAY
from trinity.config.section import NonNegative, Positive, Section


class ClusterConfig(Section):
    """Machines and their GPUs."""

    node_num: Positive = 1
    """Machines. Engines of an explorer are on one, and ranks; several take `trinity deploy`."""
    gpu_per_node: NonNegative = 0
    """GPUs of each; 0 runs on the processor."""
    ray_address: Annotated[str, NO_RAY] = "auto"
    """Address of a Ray cluster."""
    total_gpu_num: Annotated[int, DERIVED] = 0
    """GPUs of all machines."""
    rollout_gpu_num: Annotated[int, DERIVED] = 0
    """GPUs of the rollout engines."""
    auxiliary_model_gpu_num: Annotated[int, DERIVED] = 0
    """GPUs of the auxiliary models."""
    explorer_gpu_num: Annotated[int, DERIVED] = 0
    """GPUs of both."""
    trainer_gpu_num: Annotated[int, DERIVED] = 0
    """GPUs that are left to training."""
    trainer_node_num: Annotated[int, DERIVED] = 0
    """Machines that are left to training."""
    trainer_gpu_num_per_node: Annotated[int, DERIVED] = 0
    """GPUs of each of them."""
