"""Settings that save memory and are not in use yet, for errors of the engine and the trainer."""

from collections.abc import Iterator

from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.explorer import EngineConfig

MARKS = ("out of memory", "outofmemory", "kv cache", "free memory on device", "bad_alloc")
"""Parts of the texts with which torch, vLLM and the allocator say that memory ran out."""
UTILIZATION_STEP = 0.1
LEAST_UTILIZATION = 0.2
HALVED_SEQUENCES = 128
"""`max_num_seqs` to begin with where none is set."""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns true for an error of torch, vLLM or Python that says that memory ran out."""
    is_named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    text = str(error).lower()
    return is_named or any(mark in text for mark in MARKS)


def trainer_remedies(plan: StagePlan) -> str:
    """Returns what may help this stage's trainer, numbered, the cheapest first."""
    return _numbered(_of_trainer(plan))


def engine_remedies(rollout: EngineConfig, max_len: int) -> str:
    """Returns what may help an engine, numbered, the cheapest first."""
    return _numbered(_of_engine(rollout, max_len))


def _numbered(remedies: Iterator[str]) -> str:
    return "; ".join(f"({number}) {remedy}" for number, remedy in enumerate(remedies, 1))


def _of_trainer(plan: StagePlan) -> Iterator[str]:
    trainer, sharing = plan.config.trainer, plan.sequence_parallel_size
    longest = -(-plan.max_model_len // sharing)
    if (tokens := plan.max_token_len_per_gpu) > longest:
        yield (
            f"`trainer.max_token_len_per_gpu: {max(tokens // 2, longest)}` (now {tokens}, and a "
            f"sequence has up to {longest} tokens{' on each GPU' if sharing > 1 else ''})"
        )
    if not trainer.enable_gradient_checkpointing:
        yield "`trainer.enable_gradient_checkpointing: true`, for about a third more time"
    if not (trainer.optimizer_offload or trainer.offload_policy):
        yield "`trainer.optimizer_offload: true`"
    if not (trainer.param_offload or trainer.offload_policy):
        yield "`trainer.param_offload: true`"
    if not trainer.offload_policy:
        yield "`trainer.offload_policy: true`, which keeps only the layers that compute"
    ranks = plan.trainer_rank_num
    if ranks % (2 * sharing) == 0:
        yield (
            f"`trainer.ulysses_sequence_parallel_size: {2 * sharing}` (now {sharing}), with which "
            "ranks share each sequence"
        )
    yield f"more GPUs for the trainer (`trainer.rank_num`, now {ranks}), over which it is spread"
    yield (
        f"shorter answers: `model.max_response_tokens` (now {plan.max_response_tokens}), which "
        "changes the experiment"
    )


def _of_engine(rollout: EngineConfig, max_len: int) -> Iterator[str]:
    used = rollout.gpu_memory_utilization
    lower = round(max(used - UTILIZATION_STEP, LEAST_UTILIZATION), 2)
    if lower < used:
        yield (
            f"`gpu_memory_utilization: {lower:g}` (now {used:g}) where others use the GPU, or more "
            "than now where the cache is too small"
        )
    number = rollout.extra_engine_args.get("max_num_seqs")
    if not isinstance(number, int):
        yield f"`extra_engine_args: {{max_num_seqs: {HALVED_SEQUENCES}}}`"
    elif number > 1:
        yield f"`extra_engine_args: {{max_num_seqs: {number // 2}}}` (now {number})"
    if not rollout.enforce_eager:
        yield "`enforce_eager: true`, which keeps no compiled graphs"
    size = rollout.tensor_parallel_size
    yield f"`tensor_parallel_size: {2 * size}` (now {size}), which spreads the weights over GPUs"
    yield f"shorter sequences: `model.max_model_len` (now {max_len})"
