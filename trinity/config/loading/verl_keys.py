"""Treatment of each of verl's own keys below `trainer.trainer_config`.

Keys of the actor and the reference are written as verl has them since it dropped the prefix
`actor_rollout_ref`; both forms are known. A key in no table is planned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from pydantic import JsonValue

from trinity.config.loading.back_end_keys import SHARED_SEQUENCES, SIZES, TIME_AND_MEMORY
from trinity.config.schema.base import OTHER_STRATEGIES, IgnoredKey, PlannedKey, RenamedKey

PREFIX = "actor_rollout_ref"
_CLOSE = 0.88
"""Likeness above which a key is taken for a misspelt one."""
_OPTIMIZER = (
    "lr",
    "lr_warmup_steps",
    "lr_warmup_steps_ratio",
    "lr_warmup_init",
    "min_lr_ratio",
    "lr_scheduler_type",
    "weight_decay",
    "betas",
    "lr_wsd_decay_steps",
    "lr_wsd_decay_style",
)
_FSDP = ("param_offload", "optimizer_offload", "offload_policy", "fsdp_size", "forward_prefetch")
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
        for name in (
            "rollout_is",
            "rollout_is_threshold",
            "rollout_is_batch_normalize",
            "rollout_rs",
            "rollout_rs_threshold",
            "rollout_token_veto_threshold",
        )
    },
}
_OFFLOADS = ("param_offload", "grad_offload", "optimizer_offload")

RENAMED_KEYS: Mapping[str, RenamedKey] = {
    **{f"{_CORRECTION}.{key}": RenamedKey(f"/{ours}") for key, ours in _CORRECTION_KEYS.items()},
    **{f"actor.megatron.{key}": RenamedKey(f"/trainer.{key}") for key in _OFFLOADS},
    **{f"actor.optim.{key}": RenamedKey(f"/algorithm.optimizer.{key}") for key in _OPTIMIZER},
    **{f"critic.optim.{key}": RenamedKey(f"/trainer.critic.optimizer.{key}") for key in _OPTIMIZER},
    **{
        f"actor.optim.{a}": RenamedKey(f"/algorithm.optimizer.{b}") for a, b in _OTHER_NAMES.items()
    },
    **{
        f"critic.optim.{a}": RenamedKey(f"/trainer.critic.optimizer.{b}")
        for a, b in _OTHER_NAMES.items()
    },
    **{f"actor.fsdp_config.{key}": RenamedKey(f"/trainer.{key}") for key in _FSDP},
    **{
        f"critic.{section}.{key}": RenamedKey(f"/trainer.critic.{key}")
        for section in _CRITIC_FSDP
        for key in ("param_offload", "optimizer_offload")
    },
    "actor.checkpoint.save_contents": RenamedKey("/trainer.save_contents"),
    "actor.checkpoint.load_contents": RenamedKey("/trainer.load_contents"),
    "actor.grad_clip": RenamedKey("/trainer.grad_clip"),
    "actor.loss_agg_mode": RenamedKey("/algorithm.loss_agg_mode"),
    "actor.loss_scale_factor": RenamedKey("/algorithm.loss_scale_factor"),
    "actor.ppo_epochs": RenamedKey("/trainer.ppo_epochs"),
    "actor.entropy_checkpointing": RenamedKey("/trainer.entropy_checkpointing"),
    "actor.entropy_from_logits_with_chunking": RenamedKey(
        "/trainer.entropy_from_logits_with_chunking"
    ),
    "actor.ppo_max_token_len_per_gpu": RenamedKey("/trainer.max_token_len_per_gpu"),
    "actor.ppo_micro_batch_size_per_gpu": RenamedKey("/trainer.ppo_micro_batch_size_per_gpu"),
    "actor.ulysses_sequence_parallel_size": RenamedKey("/trainer.ulysses_sequence_parallel_size"),
    "actor.use_dynamic_bsz": RenamedKey("/trainer.use_dynamic_bsz"),
    "actor.use_prefix_grouper": RenamedKey("/trainer.use_prefix_grouper"),
    "critic.cliprange_value": RenamedKey("/trainer.critic.cliprange_value"),
    "critic.grad_clip": RenamedKey("/trainer.critic.grad_clip"),
    "critic.loss_agg_mode": RenamedKey("/trainer.critic.loss_agg_mode"),
    "critic.ppo_max_token_len_per_gpu": RenamedKey("/trainer.critic.max_token_len_per_gpu"),
    "critic.ppo_micro_batch_size_per_gpu": RenamedKey(
        "/trainer.critic.ppo_micro_batch_size_per_gpu"
    ),
    "critic.ppo_epochs": RenamedKey("/trainer.critic.ppo_epochs"),
    "critic.model.enable_gradient_checkpointing": RenamedKey(
        "/trainer.critic.enable_gradient_checkpointing"
    ),
    "critic.model.external_lib": RenamedKey("/trainer.critic.external_lib"),
    "critic.model.override_config": RenamedKey("/trainer.critic.override_config"),
    "critic.model.path": RenamedKey("/model.critic_model_path"),
    "model.enable_gradient_checkpointing": RenamedKey("/trainer.enable_gradient_checkpointing"),
    "model.external_lib": RenamedKey("/trainer.external_lib"),
    "model.override_config": RenamedKey("/trainer.override_config"),
    "model.path": RenamedKey("/model.model_path"),
    "model.trust_remote_code": RenamedKey("/model.trust_remote_code"),
    "model.use_fused_kernels": RenamedKey("/trainer.use_fused_kernels"),
    "model.use_remove_padding": RenamedKey("/trainer.use_remove_padding"),
    "ref.log_prob_max_token_len_per_gpu": RenamedKey("/trainer.log_prob_max_token_len_per_gpu"),
    "ref.log_prob_micro_batch_size_per_gpu": RenamedKey(
        "/trainer.log_prob_micro_batch_size_per_gpu"
    ),
    "trainer.balance_batch": RenamedKey("/trainer.balance_batch"),
    "trainer.critic_warmup": RenamedKey("/trainer.critic_warmup"),
    "trainer.resume_from_path": RenamedKey("/trainer.resume_from_path"),
    "trainer.resume_mode": RenamedKey("/trainer.resume_mode"),
    "trainer.max_actor_ckpt_to_keep": RenamedKey("/trainer.max_checkpoints_to_keep"),
}
"""Keys whose values are used under our names, or sections of such keys."""

SECTIONS = ("model.override_config", "critic.model.override_config")
"""Those of them whose keys are a model's own."""

_MICRO_BATCHES = IgnoredKey("`ppo_micro_batch_size_per_gpu` says it, for each rank")
_NO_GRADIENTS = IgnoredKey("`trainer.log_prob_max_token_len_per_gpu` says it")
_HEAD = IgnoredKey("the head is computed in chunks by PyTorch, on every device")
_ENTROPY = IgnoredKey("the reference's head is computed as the actor's is")
_WITH_CRITIC = IgnoredKey("all passes of the critic are cut as its training is")
_WITH_ACTOR = IgnoredKey("critic and reference are cut into micro-batches as the actor is")
_LAID_OUT = IgnoredKey("critic and reference are laid over the ranks as the actor is")
_BY_LAYER = IgnoredKey("FSDP2 shards layer by layer: verl reads it for `fsdp` alone")
_ON_HOST = IgnoredKey("verl keeps a reference's weights in the host's memory, whatever is written")
_FSDP_ELSEWHERE: Mapping[str, IgnoredKey] = {
    f"{section}.{key}": _LAID_OUT
    for section in (*(f"critic.{name}" for name in _CRITIC_FSDP), "ref.fsdp_config")
    for key in ("forward_prefetch", "fsdp_size", "offload_policy")
}
_ENGINE = IgnoredKey("rollout is `explorer.rollout_model` and `model`, in Trinity-RFT too")
_MEGATRON = IgnoredKey(OTHER_STRATEGIES["megatron"])
STRATEGIES = ("actor.strategy", "critic.strategy", "ref.strategy")
"""Keys that choose a back end, beside `trainer.trainer_strategy`."""
_SHUFFLE = IgnoredKey("a pass takes the whole batch as one optimizer step: order changes nothing")
_STEPS = IgnoredKey("the schedule knows the number of train steps")

WITHOUT_EFFECT: Mapping[str, IgnoredKey] = {
    **_FSDP_ELSEWHERE,
    **{
        f"actor.megatron.{name}": _MEGATRON
        for name in (*SIZES, *SHARED_SEQUENCES, *TIME_AND_MEMORY)
    },
    "critic.megatron": _LAID_OUT,
    "ref.megatron": _LAID_OUT,
    "actor.fsdp_config.wrap_policy.min_num_params": _BY_LAYER,
    **{f"critic.{name}.wrap_policy.min_num_params": _BY_LAYER for name in _CRITIC_FSDP},
    "ref.fsdp_config.wrap_policy.min_num_params": _BY_LAYER,
    "ref.fsdp_config.param_offload": _ON_HOST,
    "ref.fsdp_config.optimizer_offload": IgnoredKey("a reference has no optimizer"),
    "actor.checkpoint": IgnoredKey("checkpoints are written and read by `torch.distributed`"),
    "critic.checkpoint": IgnoredKey("the critic is saved and loaded with the actor"),
    "actor.optim.total_training_steps": _STEPS,
    "actor.ppo_infer_max_token_len_per_gpu": _NO_GRADIENTS,
    "actor.ppo_micro_batch_size": _MICRO_BATCHES,
    "actor.ppo_mini_batch_size": IgnoredKey("`buffer.train_batch_size` is one optimizer step"),
    "actor.rollout_n": IgnoredKey("`algorithm.repeat_times` says it"),
    "actor.strategy": IgnoredKey("`trainer.trainer_strategy` says it"),
    "actor.shuffle": _SHUFFLE,
    "actor.use_kl_loss": IgnoredKey("`algorithm.kl_loss_fn` says it"),
    "critic.enable": IgnoredKey("the algorithm says whether there is a critic"),
    "critic.forward_max_token_len_per_gpu": _WITH_CRITIC,
    "critic.forward_micro_batch_size_per_gpu": _WITH_CRITIC,
    "critic.model.use_remove_padding": _WITH_ACTOR,
    "critic.optim.total_training_steps": _STEPS,
    "critic.ppo_infer_max_token_len_per_gpu": _WITH_CRITIC,
    "critic.ppo_mini_batch_size": _WITH_ACTOR,
    "critic.rollout_n": _WITH_ACTOR,
    "critic.shuffle": _SHUFFLE,
    "critic.strategy": _WITH_ACTOR,
    "critic.ulysses_sequence_parallel_size": _WITH_ACTOR,
    "critic.use_dynamic_bsz": _WITH_ACTOR,
    "hybrid_engine": IgnoredKey(
        "with one GPU `mode: colocate` lets engine and trainer take turns; else each has its own"
    ),
    "model.fused_kernel_options": _HEAD,
    "ref.entropy_checkpointing": _ENTROPY,
    "ref.entropy_from_logits_with_chunking": _ENTROPY,
    "ref.log_prob_micro_batch_size": _MICRO_BATCHES,
    "ref.log_prob_use_dynamic_bsz": _WITH_ACTOR,
    "ref.rollout_n": _WITH_ACTOR,
    "ref.strategy": _WITH_ACTOR,
    "ref.ulysses_sequence_parallel_size": _WITH_ACTOR,
    "ref.use_prefix_grouper": _WITH_ACTOR,
    "ref.use_remove_padding": _WITH_ACTOR,
    "rollout": _ENGINE,
    "trainer.del_local_ckpt_after_load": IgnoredKey("`trainer.max_checkpoints_to_keep` says it"),
    "trainer.max_critic_ckpt_to_keep": IgnoredKey("the critic is saved and kept with the actor"),
    "trainer.remove_previous_ckpt_in_save": IgnoredKey("`trainer.max_checkpoints_to_keep` says it"),
    "trainer.total_training_steps": IgnoredKey("`trainer.total_steps` says it"),
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
