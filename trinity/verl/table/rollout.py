"""Section `actor_rollout_ref.rollout`."""

from trinity.verl.row import (
    KeyRow,
    combined_row,
    left_out_rows,
    missing_rows,
    not_needed_rows,
    renamed_row,
    trainer_config_rows,
)
from trinity.verl.values import as_top_k, identity, is_above_one

_ROLLOUT = "actor_rollout_ref.rollout"
_OURS = "explorer.rollout_model"
_EVAL = "buffer.explorer_input.eval_tasksets[i]"
_ARGS = "buffer.explorer_input.taskset.workflow_args"
MULTI_TURN = (
    "enable",
    "max_assistant_turns",
    "max_user_turns",
    "max_parallel_calls",
    "max_tool_response_length",
    "tool_response_truncate_side",
    "format",
    "tool_config_path",
    "function_tool_path",
)
"""Keys of `multi_turn` that veRL's loops read."""
AGENT = ("default_agent_loop", "agent_loop_config_path")
_OF_FORK = (
    "it belongs to a fork of veRL with a custom rollout: port the rollout to an agent loop "
    "(`agent_loop_config_path`) or a workflow (`default_workflow_type`)"
)

ROWS: tuple[KeyRow, ...] = (
    combined_row(
        f"{_ROLLOUT}.name", f"{_OURS}.engine_type", "vLLM rolls out, whatever the value is"
    ),
    renamed_row(f"{_ROLLOUT}.n", "algorithm.repeat_times"),
    renamed_row(f"{_ROLLOUT}.temperature", "model.temperature"),
    renamed_row(f"{_ROLLOUT}.top_p", "model.top_p"),
    renamed_row(f"{_ROLLOUT}.top_k", "model.top_k", convert=as_top_k, inverse=identity),
    renamed_row(f"{_ROLLOUT}.repetition_penalty", "model.repetition_penalty"),
    renamed_row(f"{_ROLLOUT}.tensor_model_parallel_size", f"{_OURS}.tensor_parallel_size"),
    renamed_row(f"{_ROLLOUT}.data_parallel_size", f"{_OURS}.data_parallel_size"),
    renamed_row(f"{_ROLLOUT}.pipeline_model_parallel_size", f"{_OURS}.pipeline_parallel_size"),
    renamed_row(
        f"{_ROLLOUT}.expert_parallel_size",
        f"{_OURS}.enable_expert_parallel",
        "above 1 is true",
        convert=is_above_one,
    ),
    renamed_row(f"{_ROLLOUT}.gpu_memory_utilization", f"{_OURS}.gpu_memory_utilization"),
    renamed_row(f"{_ROLLOUT}.enforce_eager", f"{_OURS}.enforce_eager"),
    renamed_row(f"{_ROLLOUT}.enable_prefix_caching", f"{_OURS}.enable_prefix_caching"),
    renamed_row(f"{_ROLLOUT}.dtype", f"{_OURS}.dtype"),
    renamed_row(f"{_ROLLOUT}.seed", f"{_OURS}.seed"),
    renamed_row(f"{_ROLLOUT}.ignore_eos", f"{_OURS}.ignore_eos"),
    renamed_row(f"{_ROLLOUT}.max_model_len", "model.max_model_len"),
    *(
        renamed_row(f"{_ROLLOUT}.{name}", f"{_OURS}.extra_engine_args.{name}")
        for name in (
            "enable_chunked_prefill",
            "max_num_seqs",
            "max_num_batched_tokens",
            "disable_log_stats",
            "quantization",
        )
    ),
    renamed_row(f"{_ROLLOUT}.engine_kwargs.vllm.*", f"{_OURS}.extra_engine_args.*", "as they are"),
    *(
        combined_row(f"{_ROLLOUT}.val_kwargs.{name}", f"{_EVAL}.rollout_args.{name}", "of each")
        for name in ("temperature", "top_p", "top_k")
    ),
    combined_row(
        f"{_ROLLOUT}.val_kwargs.do_sample",
        f"{_EVAL}.rollout_args.temperature",
        "`False`, veRL's default, is a temperature of 0",
    ),
    combined_row(f"{_ROLLOUT}.val_kwargs.n", f"{_EVAL}.repeat_times", "of each"),
    combined_row(f"{_ROLLOUT}.n_val", f"{_EVAL}.repeat_times", "`val_kwargs.n` of older projects"),
    *(
        combined_row(
            f"{_ROLLOUT}.val_{name}",
            f"{_EVAL}.rollout_args.{name}",
            f"`val_kwargs.{name}` of older projects",
        )
        for name in ("temperature", "top_p")
    ),
    combined_row(
        f"{_ROLLOUT}.nnodes",
        f"{_OURS}.engine_num",
        "with `n_gpus_per_node`, if rollout has its own",
    ),
    combined_row(f"{_ROLLOUT}.n_gpus_per_node", f"{_OURS}.engine_num", "with `nnodes`"),
    combined_row(f"{_ROLLOUT}.enable_rollout_routing_replay", "algorithm.enable_router_replay", ""),
    *(
        combined_row(
            f"{_ROLLOUT}.multi_turn.{name}",
            f"{_ARGS}.multi_turn.{name}",
            "of each taskset, with `verl_agent_workflow`",
        )
        for name in MULTI_TURN
    ),
    *(
        combined_row(f"{_ROLLOUT}.agent.{name}", f"{_ARGS}.agent.{name}", "likewise")
        for name in AGENT
    ),
    *trainer_config_rows(f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu"),
    *not_needed_rows(
        "set by `data.max_prompt_length` and `data.max_response_length`",
        f"{_ROLLOUT}.prompt_length",
        f"{_ROLLOUT}.response_length",
    ),
    *not_needed_rows(
        "engines have separate GPUs and load each version of the weights whole",
        f"{_ROLLOUT}.free_cache_engine",
        f"{_ROLLOUT}.load_format",
        f"{_ROLLOUT}.layered_summon",
        f"{_ROLLOUT}.multi_stage_wake_up",
        f"{_ROLLOUT}.checkpoint_engine.*",
        f"{_ROLLOUT}.update_weights_bucket_megabytes",
    ),
    *not_needed_rows(
        "runs are always asynchronous",
        f"{_ROLLOUT}.mode",
        f"{_ROLLOUT}.agent.num_workers",
    ),
    *not_needed_rows(
        "the engine's log-probabilities of every token are always kept",
        f"{_ROLLOUT}.calculate_log_probs",
    ),
    *missing_rows(
        "log-probabilities are those of the sampled distribution",
        f"{_ROLLOUT}.logprobs_mode",
        neutral=("processed_logprobs",),
    ),
    *missing_rows("give `model.temperature: 0`", f"{_ROLLOUT}.do_sample", neutral=(True,)),
    *not_needed_rows(
        "log-probabilities are computed in micro-batches of `trainer.max_token_len_per_gpu`",
        f"{_ROLLOUT}.log_prob_use_dynamic_bsz",
        f"{_ROLLOUT}.log_prob_max_token_len_per_gpu",
        f"{_ROLLOUT}.log_prob_micro_batch_size",
    ),
    *not_needed_rows(
        "tokens are always those of the engine",
        f"{_ROLLOUT}.skip_tokenizer_init",
        f"{_ROLLOUT}.multi_turn.tokenization_sanity_check_mode",
    ),
    *not_needed_rows(
        "veRL's own loops do not read it any more",
        f"{_ROLLOUT}.multi_turn.use_inference_chat_template",
        f"{_ROLLOUT}.multi_turn.num_repeat_rollouts",
    ),
    combined_row(f"{_ROLLOUT}.n_agent", "algorithm.repeat_times", "a fork's name of `rollout.n`"),
    *missing_rows(
        _OF_FORK,
        f"{_ROLLOUT}.do_vote",
        f"{_ROLLOUT}.n_vote",
        "actor_rollout_ref.agent.*",
        "do_search",
        "max_turns",
        "retriever.*",
        "data.max_start_length",
        "data.max_obs_length",
        "algorithm.no_think_rl",
        neutral=(False,),
    ),
    *missing_rows(
        "fire sampling is not supported: give `temperature` and `top_p`",
        f"{_ROLLOUT}.use_fire_sampling",
        neutral=(False,),
    ),
    *missing_rows(
        "tokens of tools and environments are never trained on",
        "actor_rollout_ref.actor.state_masking",
        neutral=(True,),
    ),
    *missing_rows(
        "veRL has dropped its simulated users: write the turns as a workflow or as an agent loop "
        "(`agent_loop_config_path`)",
        f"{_ROLLOUT}.multi_turn.interaction_config_path",
    ),
    *missing_rows(
        "an agent manager replaces veRL's whole rollout: port it to a workflow "
        "(`default_workflow_type`) that calls the model's OpenAI-compatible endpoint",
        f"{_ROLLOUT}.agent.agent_loop_manager_class",
        f"{_ROLLOUT}.agent.custom_async_server.*",
    ),
    *missing_rows(
        "there is no such option of agents: write it as a workflow (`default_workflow_type`)",
        f"{_ROLLOUT}.multi_turn.*",
        f"{_ROLLOUT}.agent.*",
    ),
    *left_out_rows(
        "memory and speed of an engine that does not run here: give vLLM's options in "
        "`explorer.rollout_model.extra_engine_args`",
        *(
            f"{_ROLLOUT}.engine_kwargs.{engine}.{name}"
            for engine in ("sglang", "trtllm", "dynamo")
            for name in (
                "attention_backend",
                "mm_attention_backend",
                "chunked_prefill_size",
                "disable_radix_cache",
                "enable_ep_moe",
                "enable_dp_attention",
                "mem_fraction_static",
                "moe_a2a_backend",
                "moe_runner_backend",
                "deepep_mode",
                "ep_size",
                "max_mamba_cache_size",
                "cuda_graph_max_bs",
                "batch_wait_timeout_iters",
                "batch_wait_max_tokens_ratio",
                "mamba_scheduler_strategy",
                "page_size",
            )
        ),
        f"{_ROLLOUT}.cudagraph_capture_sizes",
        f"{_ROLLOUT}.scheduling_policy",
        f"{_ROLLOUT}.moe_tensor_parallel_size",
        f"{_ROLLOUT}.disaggregation.*",
    ),
    *missing_rows(
        "the engine here is vLLM: give its own option in "
        "`explorer.rollout_model.extra_engine_args`",
        f"{_ROLLOUT}.engine_kwargs.sglang.*",
        f"{_ROLLOUT}.engine_kwargs.trtllm.*",
        f"{_ROLLOUT}.engine_kwargs.dynamo.*",
        f"{_ROLLOUT}.quantization_config_file",
    ),
    *missing_rows(
        "drafts change speed alone, and vLLM's are in `extra_engine_args.speculative_config`",
        f"{_ROLLOUT}.mtp.*",
    ),
    *left_out_rows(
        "traces are exported with OpenTelemetry (`OTEL_*` variables)", f"{_ROLLOUT}.trace.*"
    ),
    *left_out_rows(
        "metrics are exported with OpenTelemetry (`OTEL_*` variables)", f"{_ROLLOUT}.prometheus.*"
    ),
    *not_needed_rows("veRL does not read it", f"{_ROLLOUT}.over_sample_rate"),
    *left_out_rows(
        "SGLang's server does not run here",
        f"{_ROLLOUT}.sglang_rollout_mode",
        f"{_ROLLOUT}.server.*",
        f"{_ROLLOUT}.enable_sleep_mode",
    ),
)
