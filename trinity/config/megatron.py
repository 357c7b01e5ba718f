"""Subsection `trainer.megatron`: parallel sizes of an engine that is planned."""

from typing import Annotated

from trinity.config.reasons import MEGATRON_ONLY
from trinity.config.section import Positive, Section


class MegatronConfig(Section):
    """Megatron's parallel sizes."""

    tensor_model_parallel_size: Annotated[Positive, MEGATRON_ONLY] = 1
    """GPUs that share a layer."""
    pipeline_model_parallel_size: Annotated[Positive, MEGATRON_ONLY] = 1
    """Parts that the layers are split into."""
    virtual_pipeline_model_parallel_size: Annotated[Positive | None, MEGATRON_ONLY] = None
    """Turns that each part takes."""
    expert_model_parallel_size: Annotated[Positive, MEGATRON_ONLY] = 1
    """GPUs that share the experts."""
    expert_tensor_parallel_size: Annotated[Positive | None, MEGATRON_ONLY] = None
    """GPUs that share an expert."""
    context_parallel_size: Annotated[Positive, MEGATRON_ONLY] = 1
    """GPUs that share a sequence."""
    sequence_parallel: Annotated[bool, MEGATRON_ONLY] = True
    """Split what lies between the layers too."""
