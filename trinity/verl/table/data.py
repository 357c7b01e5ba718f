"""Section `data` of the veRL configuration."""

from trinity.verl.row import KeyRow, combined_row, missing_rows, not_needed_rows, renamed_row

_INPUT = "buffer.explorer_input"
_FILTER = "data_processor.experience_pipeline.operators[0].args"
_VARIABLES = "data.apply_chat_template_kwargs"

TEMPLATE_ROWS: tuple[KeyRow, ...] = (
    renamed_row(f"{_VARIABLES}.enable_thinking", "model.enable_thinking"),
    renamed_row(f"{_VARIABLES}.*", "model.chat_template_kwargs.*"),
    *missing_rows("give its variables one by one", _VARIABLES),
)
"""Variables of the chat template, for main_ppo and for sft."""

ROWS: tuple[KeyRow, ...] = (
    combined_row(
        "data.train_files",
        f"{_INPUT}.taskset.path, {_INPUT}.tasksets[i].path",
        "each file becomes a separate taskset",
    ),
    combined_row("data.val_files", f"{_INPUT}.eval_tasksets[i].path", "likewise"),
    combined_row("data.prompt_key", f"{_INPUT}.taskset.format.prompt_key", "of every taskset"),
    combined_row("data.response_key", f"{_INPUT}.taskset.format.response_key", "of every taskset"),
    combined_row(
        "data.reward_fn_key", f"{_INPUT}.taskset.format.reward_fn_key", "of every taskset"
    ),
    combined_row("data.image_key", f"{_INPUT}.taskset.format.image_key", "of every taskset"),
    combined_row("data.video_key", f"{_INPUT}.taskset.format.video_key", "of every taskset"),
    combined_row(
        "data.train_batch_size",
        "buffer.batch_size, synchronizer.sync_interval",
        "the product of the two: tasks between two versions of the weights",
    ),
    combined_row(
        "data.gen_batch_size", "buffer.batch_size", "refills are drawn as they are needed"
    ),
    *not_needed_rows("PRIME's: refills are drawn as needed", "data.oversample_factor"),
    *(
        combined_row(f"data.{name}", _FILTER, "PRIME's, of `group_mean_filter`")
        for name in ("filter_accuracy", "accuracy_lower_bound", "accuracy_upper_bound")
    ),
    combined_row("data.n_samples", "algorithm.repeat_times", "PRIME's name of `rollout.n`"),
    *not_needed_rows(
        "evaluations are not batched here (nor in veRL any more)",
        "data.val_batch_size",
    ),
    renamed_row("data.max_prompt_length", "model.max_prompt_tokens"),
    renamed_row("data.max_response_length", "model.max_response_tokens"),
    renamed_row(
        "data.filter_overlong_prompts",
        "model.enable_prompt_truncation",
        "prompts that are too long become masked experiences without reward",
    ),
    combined_row(
        "data.truncation",
        "model.enable_prompt_truncation",
        "the side does not matter: truncated rows are not trained on",
    ),
    combined_row(
        "data.shuffle",
        f"{_INPUT}.taskset.data_selector.selector_type",
        "`shuffle`, veRL's default, or `sequential`",
    ),
    combined_row(
        "data.shuffle_train_dataloader",
        f"{_INPUT}.taskset.data_selector.selector_type",
        "a fork's name of `data.shuffle`",
    ),
    combined_row("data.seed", f"{_INPUT}.taskset.data_selector.seed", "of every taskset"),
    renamed_row("data.trust_remote_code", "model.trust_remote_code"),
    *not_needed_rows(
        "workflows always get the messages",
        "data.return_raw_chat",
        "data.return_full_prompt",
        "data.return_raw_input_ids",
        "data.return_multi_modal_inputs",
    ),
    *not_needed_rows(
        "the buffer reads rows as they are needed",
        "data.filter_overlong_prompts_workers",
        "data.dataloader_num_workers",
        "data.use_shm",
    ),
    *not_needed_rows("evaluation takes all rows in any order", "data.validation_shuffle"),
    renamed_row("data.min_response_length", "model.min_response_tokens"),
    *missing_rows(
        "write the limited rows once, with `--write-rows FOLDER`",
        "data.train_max_samples",
        "data.val_max_samples",
        neutral=(-1,),
    ),
    *missing_rows(
        "run the class once and write its rows, with `--write-rows FOLDER`",
        "data.custom_cls.*",
    ),
    *missing_rows(
        "write a workflow that reads your rows (`default_workflow_type`)",
        "data.datagen.*",
        "data.tool_config_path",
        "data.function_tool_path",
    ),
    *missing_rows(
        "write the rows once in its order, with `--write-rows FOLDER`, or choose one in "
        "`buffer.explorer_input.taskset.data_selector.selector_type`: `shuffle`, "
        "`offline_easy2hard`, `difficulty_based`...",
        "data.sampler.*",
    ),
    *missing_rows("the model's own processor decides", "data.mm_processor_kwargs.*"),
    *not_needed_rows("it is that of the model's own processor", "data.image_patch_size"),
    *TEMPLATE_ROWS,
    *missing_rows("the tokenizer is the one of `model.model_path`", "data.tokenizer"),
)
