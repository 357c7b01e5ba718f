"""Keys for veRL back ends other than FSDP; FSDP2 trains instead, with the same results."""

from trinity.config.loading.keys import names, under

SIZES = names("""
    tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size
    expert_model_parallel_size expert_tensor_parallel_size sequence_parallel tensor_parallel_size
    pipeline_parallel_size expert_parallel_size data_parallel_size data_parallel_replicate_size
    data_parallel_shard_size tp pp vpp ep etp tp_size pp_size ep_size
""")
"""Names of sizes that FSDP2 has no use for, as it shards over all ranks."""
TURBO_SIZES = names("""
    fully_shard_parallel_size expert_fully_shard_parallel_size expert_parallel_size
    tensor_parallel_size
""")
"""The same of FSDP-Turbo."""
SHARED_SEQUENCES = names("""
    context_parallel_size ulysses_parallel_size ulysses_sequence_parallel_size cp cp_size
""")
"""Names of the number of GPUs that share a sequence."""
TRANSFORMER = "override_transformer_config"
TIME_AND_MEMORY = (
    *names("""
        use_mbridge vanilla_mbridge use_dist_checkpointing dist_checkpointing_path
        dist_checkpointing_prefix dist_ckpt_optim_fully_reshardable
        distrib_optim_fully_reshardable_mem_efficient use_distributed_optimizer
        override_mcore_model_config enable_full_shard enable_fsdp_offload attn_implementation
        moe_implementation use_torch_compile attention_backend_override bridge use_megatron_fsdp
        cross_entropy_loss_implementation rms_norm_implementation swiglu_mlp_implementation
        rotary_pos_emb_implementation load_balancing_loss_implementation
        dsa_indexer_implementation dsa_attention_implementation mhc_implementation
        backend_config.attn backend_config.dispatcher backend_config.enable_fsdp_optimizations
        backend_config.experts backend_config.linear backend_config.rms_norm ops_implementation
        forward_prefetch reshard_after_forward fsdp_size forward_only impl_cfg.use_thd
        impl_cfg.optimizer impl_cfg.recompute
    """),
    *under(
        TRANSFORMER,
        """
        account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split
        apply_dsa_kernel_fusion apply_rope_fusion attention_backend bias_activation_fusion
        bias_dropout_fusion context_parallel_algo context_parallel_size cross_entropy_fusion_impl
        cross_entropy_loss_fusion deallocate_pipeline_outputs fused_permute_moe
        gradient_accumulation_fusion masked_softmax_fusion moe_enable_deepep moe_grouped_gemm
        moe_permute_fusion moe_router_dtype moe_shared_expert_overlap moe_token_dispatcher_type
        moe_flex_dispatcher_backend num_layers_in_first_pipeline_stage
        num_layers_in_last_pipeline_stage overlap_moe_expert_parallel_comm persist_layer_norm
        pipeline_model_parallel_layout normalization swiglu recompute_granularity recompute_method
        recompute_modules recompute_num_layers sequence_parallel swap_optimizer
        tensor_model_parallel_size use_distributed_optimizer use_flash_attn
        use_arbitrary_attention_mask use_naive_l2norm use_fused_mhc use_fused_rmsnorm
        use_fused_rotary_pos_emb use_fused_swiglu
        """,
    ),
)
"""Names that change memory and time alone."""
