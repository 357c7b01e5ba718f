"""Section `cluster`: the machines the experiment may use."""

from trinity.config.section import NonNegative, Positive, Section


class ClusterConfig(Section):
    """Machines and their GPUs."""

    node_num: Positive = 1
    """Machines."""
    gpu_per_node: NonNegative = 0
    """GPUs of each; 0 runs on the processor."""
