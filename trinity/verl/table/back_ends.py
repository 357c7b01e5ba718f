"""Sections of veRL back ends other than FSDP: Megatron, VeOmni, TorchTitan.

FSDP2 replaces them. `trinity.verl.rules.running` reads the parallel sizes and names them in one
warning.
"""

from collections.abc import Iterable

from trinity.config.loading.back_end_keys import (
    SHARED_SEQUENCES,
    SIZES,
    TIME_AND_MEMORY,
    TRANSFORMER,
    TURBO_SIZES,
)
from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
)
from trinity.verl.values import identity

_ACTOR = "actor_rollout_ref.actor"
BACK_ENDS = ("megatron", "veomni", "torchtitan", "engine")
"""Sections below the actor's; `engine` is used by recipes with a custom back end."""
TURBO = "fsdp_config.turbo_config"
"""Section of FSDP-Turbo, which shards by plans of its own."""
FP8 = (
    "FP8 training is not supported: leave it out, the passes compute in `trainer.dtype`; rollout "
    "alone in it is `explorer.rollout_model.extra_engine_args.quantization`"
)
_SPEED = "of another back end, where it changes memory and time"


def _transformer_rows(transformer: str) -> tuple[KeyRow, ...]:
    """Rows of the keys that a section passes to Megatron's transformer."""
    return (
        combined_row(
            f"{transformer}.moe_aux_loss_coeff",
            "algorithm.router_aux_loss_coef",
            "if `moe_router_load_balancing_type` is given, too; of each row",
        ),
        combined_row(f"{transformer}.moe_z_loss_coeff", "algorithm.router_z_loss_coef", ""),
        combined_row(
            f"{transformer}.moe_router_load_balancing_type",
            "algorithm.router_aux_loss_coef",
            "`none`, veRL's default, is 0",
        ),
        *missing_rows(
            "Megatron updates router biases without a gradient, here they stay as in the model: "
            "give `router_aux_loss_coef` instead",
            f"{transformer}.moe_router_bias_update_rate",
            neutral=(0,),
        ),
        *not_needed_rows(
            "gates have the biases that the model has",
            f"{transformer}.moe_router_enable_expert_bias",
        ),
        *missing_rows(
            "FSDP2 trains the sparse attention indexer by the policy loss only",
            f"{transformer}.dsa_indexer_loss_coeff",
            f"{transformer}.dsa_indexer_use_sparse_loss",
        ),
        *missing_rows(
            "dropout is that of the model's config.json (`trainer.override_config`)",
            f"{transformer}.attention_dropout",
            f"{transformer}.hidden_dropout",
            neutral=(0,),
        ),
        *missing_rows(
            FP8,
            f"{transformer}.fp8",
            f"{transformer}.fp8_recipe",
        ),
    )


def _size_rows(section: str, sizes: Iterable[str], shared: Iterable[str]) -> tuple[KeyRow, ...]:
    """Rows of the parallel sizes of one section."""
    sharded = "FSDP2 shards over all ranks instead"
    return (
        *(combined_row(f"{section}.{name}", "", sharded) for name in sizes),
        *(
            combined_row(
                f"{section}.{name}",
                "trainer.ulysses_sequence_parallel_size",
                "GPUs that share a sequence",
            )
            for name in shared
        ),
    )


def _turbo_rows(section: str) -> tuple[KeyRow, ...]:
    """Rows of FSDP-Turbo's section."""
    shares = f"{section}.distributed"
    return (
        *_size_rows(shares, TURBO_SIZES, ("ulysses_parallel_size",)),
        combined_row(
            f"{section}.memory.recompute", "trainer.enable_gradient_checkpointing", "if it is true"
        ),
        *left_out_rows(
            _SPEED,
            *(f"{shares}.{plan}.*" for plan in ("ep_plan", "cp_plan")),
            *(f"{shares}.fsdp_plan.{name}_modules*" for name in ("apply", "hook")),
            *(f"{section}.{name}" for name in ("memory.recompute_plan*", "module_patches*")),
        ),
    )


def _section_rows(section: str) -> tuple[KeyRow, ...]:
    """Rows of one section of the actor's."""
    return (
        *_size_rows(section, SIZES, SHARED_SEQUENCES),
        *(
            renamed_row(f"{section}.{name}", f"trainer.{name}", convert=identity)
            for name in ("param_offload", "optimizer_offload", "grad_offload", "use_remove_padding")
        ),
        combined_row(f"{section}.dtype", "trainer.dtype", "`bfloat16`, `float16` or `float32`"),
        *left_out_rows(_SPEED, *(f"{section}.{name}" for name in TIME_AND_MEMORY)),
        *left_out_rows(_SPEED, f"{section}.override_ddp_config.*"),
        *_transformer_rows(f"{section}.{TRANSFORMER}"),
        *missing_rows(
            "randomness follows the experiment's `seed`",
            f"{section}.seed",
            neutral=(42,),
        ),
        combined_row(
            f"{section}.router_replay.mode", "algorithm.enable_router_replay", "`R2`, `R3` are true"
        ),
        *missing_rows(
            "an option of another back end: see whether the result depends on it", f"{section}.*"
        ),
    )


ROWS: tuple[KeyRow, ...] = (
    *(row for name in BACK_ENDS for row in _section_rows(f"{_ACTOR}.{name}")),
    *_turbo_rows(f"{_ACTOR}.{TURBO}"),
    combined_row(f"{_ACTOR}.model_engine", "trainer.trainer_strategy", "all are `fsdp2`"),
    *not_needed_rows(
        "the reference is sharded like the actor",
        *(f"actor_rollout_ref.ref.{name}.*" for name in (*BACK_ENDS, TURBO)),
    ),
    *not_needed_rows(
        "the critic is sharded like the actor", *(f"critic.{name}.*" for name in BACK_ENDS)
    ),
)

SUPERVISED_ROWS: tuple[KeyRow, ...] = (
    *(row for row in _section_rows("engine") if row.verl != "engine.use_remove_padding"),
)
