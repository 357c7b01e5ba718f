"""Keys of EasyR1 that veRL does not have, under its own names."""

from trinity.verl.row import KeyRow, left_out_rows, missing_rows, not_needed_rows

ROWS: tuple[KeyRow, ...] = (
    *missing_rows(
        "rewards get texts without special tokens",
        "worker.reward.skip_special_tokens",
        neutral=(True,),
    ),
    *missing_rows("images are read from places relative to the row's file", "data.image_dir"),
    *not_needed_rows(
        "the processes of rewards are started as they are needed", "worker.reward.num_cpus"
    ),
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
