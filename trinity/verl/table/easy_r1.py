"""Keys of EasyR1 that veRL does not have, under its own names."""

from trinity.verl.row import KeyRow, combined_row, left_out_rows, missing_rows, not_needed_rows

_REWARD = "buffer.explorer_input.default_reward_fn_type"
_WORKFLOW = "buffer.explorer_input.default_workflow_type"
_FILTER = "data_processor.experience_pipeline.operators[0].args"

ROWS: tuple[KeyRow, ...] = (
    combined_row("worker.reward.reward_function", _REWARD, "a class in the plug-in folder"),
    combined_row("worker.reward.reward_function_kwargs.*", _REWARD, "its arguments"),
    combined_row("data.format_prompt", _WORKFLOW, "a class in the plug-in folder"),
    combined_row("data.min_pixels", _WORKFLOW, "of models that read images"),
    combined_row("data.max_pixels", _WORKFLOW, "likewise"),
    combined_row("algorithm.filter_key", f"{_FILTER}.metric_key", "of `group_mean_filter`"),
    combined_row("algorithm.filter_low", f"{_FILTER}.lower", "likewise"),
    combined_row("algorithm.filter_high", f"{_FILTER}.upper", "likewise"),
    combined_row("algorithm.disable_kl", "algorithm.kl_loss_fn", "with `use_kl_loss`"),
    combined_row("algorithm.use_kl_loss", "algorithm.kl_loss_fn, algorithm.kl_penalty_fn", ""),
    *missing_rows(
        "rewards get texts without special tokens",
        "worker.reward.skip_special_tokens",
        neutral=(True,),
    ),
    *missing_rows("images are read from places relative to the row's file", "data.image_dir"),
    *not_needed_rows("rewards have processes of their own", "worker.reward.num_cpus"),
    *not_needed_rows(
        "weights and sums of gradients are float32, which Kahan's sums in bfloat16 stand for",
        "worker.actor.optim.strategy",
        "worker.critic.optim.strategy",
    ),
    *not_needed_rows(
        "prompts may have as many as the model's length", "worker.rollout.limit_images"
    ),
    *left_out_rows(
        "memory and speed alone",
        *(
            f"worker.{name}.{part}.*"
            for name in ("actor", "critic", "ref")
            for part in ("fsdp", "offload")
        ),
        "worker.rollout.disable_tqdm",
        "data.video_fps",
        "trainer.ray_timeline",
        "trainer.save_model_only",
    ),
    *not_needed_rows("the reference is the actor's first version", "worker.ref.*"),
)
