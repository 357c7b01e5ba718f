"""Treatment of each of verl's own keys below `trainer.trainer_config`.

Keys of the actor and the reference are written as verl has them since it dropped the prefix
`actor_rollout_ref`; both forms are known. A key in no table is planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import JsonValue

from trinity.config.loading.back_end_keys import (
    SHARED_SEQUENCES,
    SIZES,
    TIME_AND_MEMORY,
)
from trinity.config.loading.keys import names, renamed_keys, under
from trinity.config.schema.base import OTHER_STRATEGIES, IgnoredKey, PlannedKey, RenamedKey

PREFIX = "actor_rollout_ref"
_CLOSE = 0.88
"""Likeness above which a key is taken for a misspelt one."""
_OPTIMIZER = (
    "lr lr_warmup_steps lr_warmup_steps_ratio lr_warmup_init min_lr_ratio lr_scheduler_type "
    "weight_decay betas lr_wsd_decay_steps lr_wsd_decay_style"
)
_CRITIC_FSDP = ("fsdp", "fsdp_config", "model.fsdp_config")
"""The newest name first."""
_OTHER_NAMES = {
    "warmup_style": "lr_scheduler_type",
    "lr_decay_style": "lr_scheduler_type",
    "optimizer": "optimizer_type",
}

_CORRECTION = "algorithm.rollout_correction"
_CORRECTION_KEYS = {
    "bypass_mode": "algorithm.bypass_old_logprobs",
    **{
        name: f"{_CORRECTION}.{name}"
        for name in names(
            "rollout_is rollout_is_threshold rollout_is_batch_normalize rollout_rs "
            "rollout_rs_threshold rollout_token_veto_threshold"
        )
    },
}

RENAMED_KEYS: Mapping[str, RenamedKey] = {
    **{f"{_CORRECTION}.{key}": RenamedKey(f"/{ours}") for key, ours in _CORRECTION_KEYS.items()},
    **renamed_keys("actor.megatron", "trainer", "param_offload grad_offload optimizer_offload"),
    **renamed_keys("actor.optim", "algorithm.optimizer", _OPTIMIZER),
    **renamed_keys("critic.optim", "trainer.critic.optimizer", _OPTIMIZER),
    **{
        f"{section}.{theirs}": RenamedKey(f"/{ours}.{name}")
        for section, ours in (
            ("actor.optim", "algorithm.optimizer"),
            ("critic.optim", "trainer.critic.optimizer"),
        )
        for theirs, name in _OTHER_NAMES.items()
    },
    **renamed_keys(
        "actor.fsdp_config",
        "trainer",
        "param_offload optimizer_offload offload_policy fsdp_size forward_prefetch",
    ),
    **{
        key: renamed
        for section in _CRITIC_FSDP
        for key, renamed in renamed_keys(
            f"critic.{section}", "trainer.critic", "param_offload optimizer_offload"
        ).items()
    },
    **renamed_keys("actor.checkpoint", "trainer", "save_contents load_contents"),
    **renamed_keys("actor", "algorithm", "loss_agg_mode loss_scale_factor"),
    **renamed_keys(
        "actor",
        "trainer",
        "grad_clip ppo_epochs entropy_checkpointing entropy_from_logits_with_chunking "
        "ppo_micro_batch_size_per_gpu ulysses_sequence_parallel_size use_dynamic_bsz "
        "use_prefix_grouper",
    ),
    "actor.ppo_max_token_len_per_gpu": RenamedKey("/trainer.max_token_len_per_gpu"),
    **renamed_keys(
        "critic",
        "trainer.critic",
        "cliprange_value grad_clip loss_agg_mode ppo_micro_batch_size_per_gpu ppo_epochs",
    ),
    "critic.ppo_max_token_len_per_gpu": RenamedKey("/trainer.critic.max_token_len_per_gpu"),
    **renamed_keys(
        "critic.model",
        "trainer.critic",
        "enable_gradient_checkpointing external_lib override_config",
    ),
    "critic.model.path": RenamedKey("/model.critic_model_path"),
    **renamed_keys(
        "model",
        "trainer",
        "enable_gradient_checkpointing external_lib override_config use_fused_kernels "
        "use_remove_padding",
    ),
    "model.path": RenamedKey("/model.model_path"),
    **renamed_keys("model", "model", "trust_remote_code"),
    **renamed_keys(
        "ref", "trainer", "log_prob_max_token_len_per_gpu log_prob_micro_batch_size_per_gpu"
    ),
    **renamed_keys(
        "trainer", "trainer", "balance_batch critic_warmup resume_from_path resume_mode"
    ),
    "trainer.max_actor_ckpt_to_keep": RenamedKey("/trainer.max_checkpoints_to_keep"),
}
"""Keys whose values are used under our names, or sections of such keys."""

SECTIONS = ("model.override_config", "critic.model.override_config")
"""Those of them whose keys are a model's own."""

STRATEGIES = ("actor.strategy", "critic.strategy", "ref.strategy")
"""Keys that choose a back end, in addition to `trainer.trainer_strategy`."""
_FSDP = (*(f"critic.{name}" for name in _CRITIC_FSDP), "ref.fsdp_config")
_PLACED = ("forward_prefetch", "fsdp_size", "offload_policy")
_REASONS: Mapping[str, tuple[str, ...]] = {
    "critic and reference are laid over the ranks as the actor is": (
        *(f"{fsdp}.{name}" for fsdp in _FSDP for name in _PLACED),
        "critic.megatron",
        "ref.megatron",
    ),
    OTHER_STRATEGIES["megatron"]: tuple(
        f"actor.megatron.{name}" for name in (*SIZES, *SHARED_SEQUENCES, *TIME_AND_MEMORY)
    ),
    "FSDP2 shards layer by layer: verl reads it for `fsdp` alone": tuple(
        f"{fsdp}.wrap_policy.min_num_params" for fsdp in ("actor.fsdp_config", *_FSDP)
    ),
    "verl keeps a reference's weights in the host's memory, whatever is written": (
        "ref.fsdp_config.param_offload",
    ),
    "a reference has no optimizer": ("ref.fsdp_config.optimizer_offload",),
    "checkpoints are written and read by `torch.distributed`": ("actor.checkpoint",),
    "the critic is saved and loaded with the actor": ("critic.checkpoint",),
    "the schedule knows the number of train steps": names(
        "actor.optim.total_training_steps critic.optim.total_training_steps"
    ),
    "`trainer.log_prob_max_token_len_per_gpu` says it": ("actor.ppo_infer_max_token_len_per_gpu",),
    "`ppo_micro_batch_size_per_gpu` says it, for each rank": names(
        "actor.ppo_micro_batch_size ref.log_prob_micro_batch_size"
    ),
    "`buffer.train_batch_size` is one optimizer step": ("actor.ppo_mini_batch_size",),
    "`algorithm.repeat_times` says it": ("actor.rollout_n",),
    "`trainer.trainer_strategy` says it": ("actor.strategy",),
    "a pass takes the whole batch as one optimizer step: order changes nothing": names(
        "actor.shuffle critic.shuffle"
    ),
    "`algorithm.kl_loss_fn` says it": ("actor.use_kl_loss",),
    "the algorithm says whether there is a critic": ("critic.enable",),
    "all passes of the critic are cut as its training is": under(
        "critic",
        "forward_max_token_len_per_gpu forward_micro_batch_size_per_gpu "
        "ppo_infer_max_token_len_per_gpu",
    ),
    "critic and reference are cut into micro-batches as the actor is": (
        *under(
            "critic",
            "model.use_remove_padding ppo_mini_batch_size rollout_n strategy "
            "ulysses_sequence_parallel_size use_dynamic_bsz",
        ),
        *under(
            "ref",
            "log_prob_use_dynamic_bsz rollout_n strategy ulysses_sequence_parallel_size "
            "use_prefix_grouper use_remove_padding",
        ),
    ),
    "with one GPU `mode: colocate` lets engine and trainer take turns; else each has its own": (
        "hybrid_engine",
    ),
    "the head is computed in chunks by PyTorch, on every device": ("model.fused_kernel_options",),
    "the reference's head is computed as the actor's is": under(
        "ref", "entropy_checkpointing entropy_from_logits_with_chunking"
    ),
    "rollout is `explorer.rollout_model` and `model`, in Trinity-RFT too": ("rollout",),
    "`trainer.max_checkpoints_to_keep` says it": under(
        "trainer", "del_local_ckpt_after_load remove_previous_ckpt_in_save"
    ),
    "the critic is saved and kept with the actor": ("trainer.max_critic_ckpt_to_keep",),
    "`trainer.total_steps` says it": ("trainer.total_training_steps",),
}
WITHOUT_EFFECT: Mapping[str, IgnoredKey] = {
    key: IgnoredKey(reason) for reason, keys in _REASONS.items() for key in keys
}
"""Keys, or sections of them, whose purpose is served in another way here."""

PLANNED_DEFAULTS: Mapping[str, JsonValue] = {
    "trainer.default_hdfs_dir": None,
}
"""Planned keys with the value that describes today's behaviour; giving it is no error."""

_LOSS_ARGS = "algorithm.policy_loss_fn_args"
_PENALTY = "algorithm.kl_penalty_fn"
NAMED_KEYS: Mapping[str, tuple[str, JsonValue]] = {
    "actor.clip_ratio": (f"{_LOSS_ARGS}.clip_range", 0.2),
    "actor.clip_ratio_low": (f"{_LOSS_ARGS}.clip_range_low", 0.2),
    "actor.clip_ratio_high": (f"{_LOSS_ARGS}.clip_range_high", 0.2),
    "actor.clip_ratio_c": (f"{_LOSS_ARGS}.clip_ratio_c", 3.0),
    "actor.tau_pos": (f"{_LOSS_ARGS}.tau_pos", 1.0),
    "actor.tau_neg": (f"{_LOSS_ARGS}.tau_neg", 1.05),
    "actor.policy_loss.loss_mode": ("algorithm.policy_loss_fn", "vanilla"),
    "actor.policy_loss.clip_cov_ratio": (f"{_LOSS_ARGS}.clip_cov_ratio", 0.0002),
    "actor.policy_loss.clip_cov_lb": (f"{_LOSS_ARGS}.clip_cov_lb", 1.0),
    "actor.policy_loss.clip_cov_ub": (f"{_LOSS_ARGS}.clip_cov_ub", 5.0),
    "actor.policy_loss.kl_cov_ratio": (f"{_LOSS_ARGS}.kl_cov_ratio", 0.0002),
    "actor.policy_loss.ppo_kl_coef": (f"{_LOSS_ARGS}.ppo_kl_coef", 0.1),
    "actor.policy_loss.dro_beta": (f"{_LOSS_ARGS}.dro_beta", None),
    "actor.entropy_coeff": ("algorithm.entropy_loss_fn_args.entropy_coef", 0),
    "actor.kl_loss_coef": ("algorithm.kl_loss_fn_args.kl_coef", 0.001),
    "actor.kl_loss_type": ("algorithm.kl_loss_fn", "low_var_kl"),
    "algorithm.adv_estimator": ("algorithm.advantage_fn", None),
    "algorithm.gamma": ("algorithm.advantage_fn_args.gamma", 1.0),
    "algorithm.lam": ("algorithm.advantage_fn_args.lam", 1.0),
    "algorithm.norm_adv_by_std_in_grpo": ("algorithm.advantage_fn", True),
    "algorithm.use_kl_in_reward": (_PENALTY, False),
    "algorithm.kl_penalty": (_PENALTY, "kl"),
    "algorithm.kl_ctrl.type": (f"{_PENALTY}_args.adaptive", "fixed"),
    "algorithm.kl_ctrl.kl_coef": (f"{_PENALTY}_args.kl_coef", 0.001),
    "algorithm.kl_ctrl.horizon": (f"{_PENALTY}_args.horizon", 10000),
    "algorithm.kl_ctrl.target_kl": (f"{_PENALTY}_args.target_kl", 0.1),
    f"{_CORRECTION}.loss_type": ("algorithm.policy_loss_fn", None),
    "rollout_correction.loss_type": ("algorithm.policy_loss_fn", None),
    **{f"rollout_correction.{key}": (ours, None) for key, ours in _CORRECTION_KEYS.items()},
    "data.max_prompt_length": ("model.max_prompt_tokens", None),
    "data.max_response_length": ("model.max_response_tokens", None),
    "data.train_batch_size": ("buffer.batch_size", None),
    "trainer.save_freq": ("trainer.save_interval", -1),
    "trainer.test_freq": ("explorer.eval_interval", -1),
    "trainer.total_epochs": ("buffer.total_epochs", None),
    "trainer.n_gpus_per_node": ("cluster.gpu_per_node", None),
    "trainer.nnodes": ("cluster.node_num", None),
    "trainer.val_before_train": ("explorer.eval_on_startup", False),
    "trainer.default_local_dir": ("checkpoint_root_dir", None),
    "trainer.project_name": ("project", None),
    "trainer.experiment_name": ("name", None),
    "trainer.logger": ("monitor.monitor_type", None),
}
"""Keys whose counterpart stands elsewhere in the file and decides, with veRL's default; a value
that is the default needs no notice."""

NOT_PASSED = "verl's engine is not given this key"
PLANNED_REASONS: Mapping[str, str] = {
    "actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap": (
        "sharded are the layers that the model itself names"
    ),
    "trainer.default_hdfs_dir": (
        "checkpoints are written below `checkpoint_root_dir` alone: have HDFS mounted there"
    ),
}
"""Reasons for keys that have a more specific one."""


@dataclass(frozen=True, slots=True)
class DefaultBehavior:
    """A key whose value is what happens anyway, so that it needs no notice."""


def key_treatment(
    key: str, value: JsonValue
) -> RenamedKey | IgnoredKey | PlannedKey | DefaultBehavior:
    """The treatment of a key below `trainer_config`, with or without verl's older prefix."""
    key = key.removeprefix(f"{PREFIX}.")
    if value == {} and key in RENAMED_KEYS:
        return DefaultBehavior()
    if (renamed := _renamed_key(key)) is not None:
        return renamed
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        if mark := WITHOUT_EFFECT.get(".".join(parts[:end])):
            return mark
    if value is None or (key in PLANNED_DEFAULTS and PLANNED_DEFAULTS[key] == value):
        return DefaultBehavior()
    if key in NAMED_KEYS:
        ours, default = NAMED_KEYS[key]
        is_default = default is not None and value == default
        return DefaultBehavior() if is_default else PlannedKey(f"give `{ours}` in its place")
    return PlannedKey(PLANNED_REASONS.get(key) or _did_you_mean(key) or NOT_PASSED)


def _did_you_mean(key: str) -> str:
    """The advice for a key that is close to a known one of the same section; else empty."""
    section, _, name = key.rpartition(".")
    known = {*RENAMED_KEYS, *WITHOUT_EFFECT, *NAMED_KEYS}
    names = [other.rpartition(".") for other in known]
    beside = sorted(last for above, _, last in names if above == section)
    near = get_close_matches(name, beside, n=1, cutoff=_CLOSE)
    return f"did you mean `{section}.{near[0]}`?" if near else ""


def _renamed_key(key: str) -> RenamedKey | None:
    """The new name of a used key; a key below a used section keeps its name below ours."""
    if key in RENAMED_KEYS:
        return RENAMED_KEYS[key]
    for section in SECTIONS:
        if key.startswith(f"{section}."):
            return RenamedKey(RENAMED_KEYS[section].to + key.removeprefix(section))
    return None
