"""The reads that the processes of runs wrote down."""

from pathlib import Path

ON_GPUS = {
    "AuxiliaryModelConfig.enforce_eager": ["explorer"],
    "AuxiliaryModelConfig.gpu_memory_utilization": ["explorer"],
    "RolloutModelConfig.enforce_eager": ["explorer"],
    "RolloutModelConfig.gpu_memory_utilization": ["explorer"],
}
"""Read by engines on GPUs alone: services/explorer/engine/vllm_options.py."""


def recorded(directory: Path) -> dict[str, list[str]]:
    """`Class.field` to its readers; planning is named where nobody else reads the field."""
    readers: dict[str, set[str]] = {}
    for file in directory.glob("*.reads"):
        for line in file.read_text().splitlines():
            field, reader = line.split()
            readers.setdefault(field, set()).add(reader)
    return {field: sorted(found - {"planning"} or found) for field, found in readers.items()}
