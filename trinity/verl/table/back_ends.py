"""Sections of veRL's back ends other than FSDP: Megatron, VeOmni, TorchTitan.

FSDP2 trains in their place. Parallel sizes are read by `trinity.verl.rules.back_end`, which names
them in one warning.
"""

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
"""Sections below the actor's; `engine` is that of recipes with a back end of their own."""
SIZES = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
    "data_parallel_replicate_size",
    "data_parallel_shard_size",
    "tp",
    "pp",
    "vpp",
    "ep",
    "etp",
    "tp_size",
    "pp_size",
    "ep_size",
)
"""Names of sizes that FSDP2 has no use for, as it shards over all ranks."""
SHARED_SEQUENCES = (
    "context_parallel_size",
    "ulysses_parallel_size",
    "ulysses_sequence_parallel_size",
    "cp",
    "cp_size",
)
"""Names of the number of GPUs that share a sequence."""
_SPEED = "of another back end, where it changes memory and time"
_TRANSFORMER = "override_transformer_config"
_FAST = (
    "use_mbridge",
    "vanilla_mbridge",
    "use_dist_checkpointing",
    "dist_checkpointing_path",
    "dist_checkpointing_prefix",
    "dist_ckpt_optim_fully_reshardable",
    "distrib_optim_fully_reshardable_mem_efficient",
    "use_distributed_optimizer",
    "override_mcore_model_config",
    "enable_full_shard",
    "enable_fsdp_offload",
    "attn_implementation",
    "moe_implementation",
    "use_torch_compile",
    "attention_backend_override",
    "bridge",
    "use_megatron_fsdp",
    "cross_entropy_loss_implementation",
    "rms_norm_implementation",
    "swiglu_mlp_implementation",
    "rotary_pos_emb_implementation",
    "load_balancing_loss_implementation",
    "ops_implementation",
    "forward_prefetch",
    "reshard_after_forward",
    "fsdp_size",
    "forward_only",
    "impl_cfg.use_thd",
    "impl_cfg.optimizer",
    "impl_cfg.recompute",
    *(
        f"{_TRANSFORMER}.{name}"
        for name in (
            "account_for_embedding_in_pipeline_split",
            "account_for_loss_in_pipeline_split",
            "apply_rope_fusion",
            "attention_backend",
            "bias_activation_fusion",
            "bias_dropout_fusion",
            "context_parallel_algo",
            "context_parallel_size",
            "cross_entropy_fusion_impl",
            "cross_entropy_loss_fusion",
            "deallocate_pipeline_outputs",
            "fused_permute_moe",
            "gradient_accumulation_fusion",
            "masked_softmax_fusion",
            "moe_enable_deepep",
            "moe_grouped_gemm",
            "moe_permute_fusion",
            "moe_router_dtype",
            "moe_shared_expert_overlap",
            "moe_token_dispatcher_type",
            "moe_flex_dispatcher_backend",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "overlap_moe_expert_parallel_comm",
            "persist_layer_norm",
            "pipeline_model_parallel_layout",
            "normalization",
            "swiglu",
            "recompute_granularity",
            "recompute_method",
            "recompute_modules",
            "recompute_num_layers",
            "sequence_parallel",
            "swap_optimizer",
            "tensor_model_parallel_size",
            "use_distributed_optimizer",
            "use_flash_attn",
            "use_arbitrary_attention_mask",
            "use_naive_l2norm",
            "use_fused_rmsnorm",
            "use_fused_rotary_pos_emb",
            "use_fused_swiglu",
        )
    ),
)
_NOT_ADDED = "Megatron adds it to the loss, FSDP2 trains without it"


def _section_rows(section: str) -> tuple[KeyRow, ...]:
    """Rows of one section of the actor's."""
    transformer = f"{section}.{_TRANSFORMER}"
    return (
        *(
            combined_row(f"{section}.{name}", "", "FSDP2 shards over all ranks in its place")
            for name in SIZES
        ),
        *(
            combined_row(
                f"{section}.{name}",
                "trainer.ulysses_sequence_parallel_size",
                "GPUs that share a sequence",
            )
            for name in SHARED_SEQUENCES
        ),
        *(
            renamed_row(f"{section}.{name}", f"trainer.{name}", convert=identity)
            for name in ("param_offload", "optimizer_offload", "grad_offload", "use_remove_padding")
        ),
        combined_row(f"{section}.dtype", "trainer.dtype", "`bfloat16` or `float32`"),
        *left_out_rows(_SPEED, *(f"{section}.{name}" for name in _FAST)),
        *left_out_rows(_SPEED, f"{section}.override_ddp_config.*"),
        *missing_rows(
            _NOT_ADDED,
            f"{transformer}.moe_aux_loss_coeff",
            f"{transformer}.moe_z_loss_coeff",
            f"{transformer}.moe_router_bias_update_rate",
            neutral=(0,),
        ),
        *missing_rows(
            "dropout is that of the model's config.json (`trainer.override_config`)",
            f"{transformer}.attention_dropout",
            f"{transformer}.hidden_dropout",
            neutral=(0,),
        ),
        *missing_rows(
            _NOT_ADDED, f"{transformer}.moe_router_load_balancing_type", neutral=("none",)
        ),
        *missing_rows(
            "the trainer computes in `trainer.dtype`",
            f"{transformer}.fp8",
            f"{transformer}.fp8_recipe",
        ),
        *missing_rows(
            "what chance decides follows from `seed`, the experiment's",
            f"{section}.seed",
            neutral=(42,),
        ),
        *missing_rows(
            "an option of another back end: see whether the result depends on it", f"{section}.*"
        ),
    )


ROWS: tuple[KeyRow, ...] = (
    *(row for name in BACK_ENDS for row in _section_rows(f"{_ACTOR}.{name}")),
    combined_row(f"{_ACTOR}.model_engine", "trainer.trainer_strategy", "all are `fsdp2`"),
    *not_needed_rows(
        "the reference is laid out as the actor is",
        *(f"actor_rollout_ref.ref.{name}.*" for name in BACK_ENDS),
    ),
    *not_needed_rows(
        "the critic is laid out as the actor is", *(f"critic.{name}.*" for name in BACK_ENDS)
    ),
)

SUPERVISED_ROWS: tuple[KeyRow, ...] = (
    *(row for row in _section_rows("engine") if row.verl != "engine.use_remove_padding"),
)
