"""Errors of memory end with what fits the run: nothing that is set already, numbers of its own."""

import pytest

from services.trainer.messages import StageOrder
from services.trainer.rank.__main__ import failure_of
from tests.unit.config.builders import stage
from trinity.config.schema.explorer import EngineConfig
from trinity.config.sizing.stage_sizes import engine_remedies, is_out_of_memory, trainer_remedies


class OutOfMemoryError(RuntimeError):
    """As torch calls it."""


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (MemoryError(), True),
        (ValueError("No available memory for the cache blocks. (KV cache)"), True),
        (ValueError("Free memory on device (1.1/79.1 GiB) on startup is less than desired"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (ValueError("the tokenizer has no end token"), False),
    ],
)
def test_errors_of_memory_are_known_by_type_and_text(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


def test_a_larger_limit_of_passes_without_gradients_is_named() -> None:
    own = {"max_token_len_per_gpu": 8192, "log_prob_max_token_len_per_gpu": 16384}
    assert "(2) `trainer.log_prob_max_token_len_per_gpu` left out" in trainer_remedies(
        stage(trainer=own)
    )
    own["log_prob_max_token_len_per_gpu"] = 8192
    assert "log_prob" not in trainer_remedies(stage(trainer=own))


def test_only_what_is_not_in_use_is_named_with_its_number() -> None:
    plan = stage(trainer={"max_token_len_per_gpu": 8192, "optimizer_offload": True})
    told = trainer_remedies(plan)
    assert told.startswith("(1) `trainer.max_token_len_per_gpu: 4096` (now 8192, ")
    assert "(2) `trainer.enable_gradient_checkpointing: true`" in told
    assert "optimizer_offload" not in told
    whole = stage(
        trainer={
            "max_token_len_per_gpu": plan.max_model_len,
            "enable_gradient_checkpointing": True,
            "offload_policy": True,
        }
    )
    told = trainer_remedies(whole)
    assert told.startswith("(1) more GPUs for the trainer (`trainer.rank_num`, now ")
    assert "max_token_len_per_gpu" not in told
    assert "offload" not in told


def test_an_engine_is_told_its_own_settings() -> None:
    told = engine_remedies(EngineConfig(gpu_memory_utilization=0.85), 4096)
    assert told.startswith("(1) `gpu_memory_utilization: 0.75` (now 0.85)")
    assert "max_num_seqs: 128" in told
    assert "`tensor_parallel_size: 2` (now 1)" in told
    assert "`model.max_model_len` (now 4096)" in told
    small = EngineConfig(
        gpu_memory_utilization=0.2, enforce_eager=True, extra_engine_args={"max_num_seqs": 64}
    )
    told = engine_remedies(small, 4096)
    assert "gpu_memory_utilization" not in told
    assert "enforce_eager" not in told
    assert "max_num_seqs: 32}` (now 64)" in told


def test_a_rank_without_memory_ends_the_run_with_remedies() -> None:
    plan = stage(trainer={"max_token_len_per_gpu": 8192})
    order = StageOrder.model_construct(plan_json=plan.model_dump_json())
    failed = failure_of(OutOfMemoryError("CUDA out of memory. Tried\nmore"), order)
    assert not failed.can_retry
    assert failed.reason.startswith(
        "the trainer is out of memory (CUDA out of memory. Tried): (1) `trainer.max_token_len_per"
    )


def test_ranks_that_share_rows_need_room_for_parts_of_them() -> None:
    shared = {"rank_num": 4, "ulysses_sequence_parallel_size": 2, "max_token_len_per_gpu": 4096}
    told = trainer_remedies(stage(trainer=shared, model={"max_model_len": 3000}))
    assert "`trainer.max_token_len_per_gpu: 2048` (now 4096, and a sequence has up to 1500" in told
    assert "`trainer.ulysses_sequence_parallel_size: 4` (now 2)" in told
    assert "ulysses" not in trainer_remedies(stage(trainer={"rank_num": 1}))


def test_remedies_fit_gpus_rows_and_turns() -> None:
    on_gpus: dict[str, object] = {"cluster": {"gpu_per_node": 2}}
    assert "enable_gradient_checkpointing" not in trainer_remedies(stage(**on_gpus))
    rows = {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 8}
    told = trainer_remedies(stage(trainer=rows, **on_gpus))
    assert told.startswith("(1) `trainer.ppo_micro_batch_size_per_gpu: 4` (now 8)")
    assert "max_token_len_per_gpu" not in told
    told = trainer_remedies(stage(mode="colocate", cluster={"gpu_per_node": 1}))
    assert "`mode: both` with a GPU for the engine" in told
