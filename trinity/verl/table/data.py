"""Section `data` of veRL's configuration."""

from trinity.verl.row import KeyRow, combined, missing, moved, needless

_INPUT = "buffer.explorer_input"

ROWS: tuple[KeyRow, ...] = (
    combined(
        "data.train_files",
        f"{_INPUT}.taskset.path, {_INPUT}.tasksets[i].path",
        "`dir/train.parquet` is the directory with `split: train`",
    ),
    combined("data.val_files", f"{_INPUT}.eval_tasksets[i].path", "likewise"),
    combined("data.prompt_key", f"{_INPUT}.taskset.format.prompt_key", "of every taskset"),
    combined("data.response_key", f"{_INPUT}.taskset.format.response_key", "of every taskset"),
    combined("data.reward_fn_key", f"{_INPUT}.taskset.format.reward_fn_key", "of every taskset"),
    combined("data.image_key", f"{_INPUT}.taskset.format.image_key", "of every taskset"),
    combined("data.video_key", f"{_INPUT}.taskset.format.video_key", "of every taskset"),
    combined(
        "data.train_batch_size",
        "buffer.batch_size, synchronizer.sync_interval",
        "the product of the two: tasks between two versions of the weights",
    ),
    combined("data.gen_batch_size", "buffer.batch_size", "refills are drawn as they are needed"),
    *needless(
        "evaluations are not batched here (nor in veRL any more)",
        "data.val_batch_size",
    ),
    moved("data.max_prompt_length", "model.max_prompt_tokens"),
    moved("data.max_response_length", "model.max_response_tokens"),
    moved(
        "data.filter_overlong_prompts",
        "model.enable_prompt_truncation",
        "prompts that are too long become masked experiences without reward",
    ),
    combined(
        "data.truncation",
        "model.enable_prompt_truncation",
        "which side is cut does not matter: what was cut is not trained on",
    ),
    combined(
        "data.shuffle",
        f"{_INPUT}.taskset.data_selector.selector_type",
        "`shuffle`, veRL's default, or `sequential`",
    ),
    combined("data.seed", f"{_INPUT}.taskset.data_selector.seed", "of every taskset"),
    moved("data.trust_remote_code", "model.trust_remote_code"),
    combined("data.apply_chat_template_kwargs.enable_thinking", "model.enable_thinking", ""),
    *needless(
        "workflows always get the messages",
        "data.return_raw_chat",
        "data.return_full_prompt",
        "data.return_raw_input_ids",
        "data.return_multi_modal_inputs",
    ),
    *needless(
        "the buffer reads rows as they are needed",
        "data.filter_overlong_prompts_workers",
        "data.dataloader_num_workers",
        "data.use_shm",
    ),
    *needless("evaluation takes all rows in any order", "data.validation_shuffle"),
    *missing(
        "cut the file beforehand, or give `buffer.total_steps`",
        "data.train_max_samples",
        "data.val_max_samples",
    ),
    *missing(
        "write a workflow that reads your rows (`default_workflow_type`)",
        "data.custom_cls.*",
        "data.datagen.*",
        "data.tool_config_path",
        "data.function_tool_path",
    ),
    *missing(
        "choose an order of tasks in `buffer.explorer_input.taskset.data_selector.selector_type`: "
        "`shuffle`, `offline_easy2hard`, `difficulty_based`...",
        "data.sampler.*",
    ),
    *missing(
        "the model's own processor decides", "data.mm_processor_kwargs.*", "data.image_patch_size"
    ),
    *missing(
        "write it into a template and give `model.chat_template_path`",
        "data.apply_chat_template_kwargs.*",
    ),
    *missing("the tokenizer is the one of `model.model_path`", "data.tokenizer"),
)
