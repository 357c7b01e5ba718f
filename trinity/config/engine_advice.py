"""Advice on the training engine's settings: keys without effect, models that differ."""

from collections.abc import Iterator

from trinity.config.plan import StagePlan

OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy")


def offload_without_gpus(stage: StagePlan) -> Iterator[str]:
    """Offloading without GPUs moves nothing: all memory is the host's."""
    trainer = stage.config.trainer
    keys = [f"trainer.{key}" for key in OFFLOADS if getattr(trainer, key)]
    critic = trainer.critic
    of_critic = {"param": critic.param_offload, "optimizer": critic.optimizer_offload}
    if stage.needs_critic:
        keys += [f"trainer.critic.{key}_offload" for key, value in of_critic.items() if value]
    if keys and not stage.config.cluster.gpu_per_node:
        yield f"`{'`, `'.join(keys)}`: nothing moves where there is no GPU"


def other_model_than_the_engines(stage: StagePlan) -> Iterator[str]:
    """Ratios compare the trainer's log-probabilities with the engine's."""
    if stage.config.trainer.override_config and stage.needs_rollout:
        yield (
            "`trainer.override_config` is laid over the trainer's models alone: where it changes "
            "what a model computes, tell the engine too "
            "(`explorer.rollout_model.extra_engine_args.hf_overrides`)"
        )
