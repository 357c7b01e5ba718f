"""Suggests the setting to change where a stage does not fit."""

from dataclasses import replace

from trinity.config.plan.stage_plan import StagePlan
from trinity.sizing.memory import GIB, Training, cache_room
from trinity.sizing.model_shape import ModelShape
from trinity.sizing.stage_sizes import rank_memory, training_of

USABLE = 0.8
"""Share of a GPU: the rest is for the driver, the allocator and fragmentation."""
_STEP = 256


def rank_advice(
    stage: StagePlan, shape: ModelShape, critic: ModelShape | None, gpu_bytes: int
) -> str:
    """Returns one sentence: fewer tokens at a time if that is enough, else more ranks."""
    limit = int(USABLE * gpu_bytes)
    training = training_of(stage)
    least = stage.max_model_len * (2 if stage.algorithm.row_schema == "dpo" else 1)

    def needs(candidate: Training) -> int:
        return rank_memory(stage, shape, critic, candidate).total

    for tokens in range(training.tokens // _STEP * _STEP, least - 1, -_STEP):
        if needs(replace(training, tokens=tokens)) <= limit:
            return f"set `trainer.max_token_len_per_gpu: {tokens}`"
    shortest = replace(training, tokens=min(least, training.tokens))
    for ranks in (training.ranks * 2**i for i in range(1, 8)):
        if needs(replace(shortest, ranks=ranks)) <= limit:
            return (
                f"train on {ranks} GPUs of one machine (`cluster.gpu_per_node`) with "
                f"`trainer.max_token_len_per_gpu: {shortest.tokens}`"
            )
    return "shorten `model.max_model_len`, or take a smaller model or larger GPUs"


def engine_advice(stage: StagePlan, shape: ModelShape, gpu_bytes: int, wanted: int) -> str:
    """Returns one sentence: a larger share of the GPU if enough, else more GPUs per engine.

    `wanted` is the number of bytes for the cache on all GPUs of an engine together.
    """
    rollout = stage.config.explorer.rollout_model
    for gpus, share in (
        *((rollout.tensor_parallel_size, share) for share in (0.85, 0.9, 0.95)),
        *((2**i * rollout.tensor_parallel_size, 0.9) for i in range(1, 5)),
    ):
        room = cache_room(
            shape, gpus=gpus, dtype=rollout.dtype, gpu_bytes=gpu_bytes, utilization=share
        )
        if room * gpus >= wanted and share >= rollout.gpu_memory_utilization:
            if gpus == rollout.tensor_parallel_size:
                return f"set `explorer.rollout_model.gpu_memory_utilization: {share}`"
            return f"set `explorer.rollout_model.tensor_parallel_size: {gpus}`"
    return f"take a smaller model, or GPUs of more than {gpu_bytes // GIB} GiB"
