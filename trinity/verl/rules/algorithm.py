"""The algorithm: advantages, the two KL terms, the loss and its arguments."""

from collections.abc import Mapping

from trinity.verl.settings import VerlSetting
from trinity.verl.work import Conversion

ACTOR = "actor_rollout_ref.actor"
_CORRECTION = "algorithm.rollout_correction"
ESTIMATORS = {
    "gae": ("ppo", "ppo"),
    "grpo": ("grpo", "grpo"),
    "grpo_vectorized": ("grpo", "grpo"),
    "grpo_passk": ("grpo", "grpo_passk"),
    "rloo": ("rloo", "rloo"),
    "rloo_vectorized": ("rloo", "rloo"),
    "reinforce_plus_plus": ("reinforceplusplus", "reinforce_plus_plus"),
    "reinforce_plus_plus_baseline": ("reinforceplusplus", "reinforce_plus_plus_baseline"),
    "remax": ("reinforceplusplus", "remax"),
    "opo": ("grpo", "opo"),
    "gpg": ("grpo", "gpg"),
    "optimal_token_baseline": ("grpo", "optimal_token_baseline"),
    "tir_optimal_token_baseline": ("grpo", "tir_optimal_token_baseline"),
}
"""veRL's estimator to our algorithm type and advantage."""
KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl+": "k3+"}
LOSS_NAMES = {"vanilla": "ppo"}
BYPASS_LOSSES = {"ppo_clip": "ppo", "reinforce": "gpg"}
"""Losses by `rollout_correction.loss_type`, which decides in bypass mode; `reinforce` has no ratio
of its own and is weighed by the correction, as `gpg` is."""
_WEIGHTS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
LOSS_ARGUMENTS = {
    "clip_ratio": "clip_range",
    "clip_ratio_low": "clip_range_low",
    "clip_ratio_high": "clip_range_high",
    "clip_ratio_c": "clip_ratio_c",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
}
_CLIP = ("clip_range", "clip_range_low", "clip_range_high")
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "ppo": (*_CLIP, "clip_ratio_c"),
    "dppo_kl": (*_CLIP, "clip_ratio_c"),
    "dppo_tv": (*_CLIP, "clip_ratio_c"),
    "geo_mean": _CLIP,
    "gspo": _CLIP[1:],
    "gspo_token": _CLIP[1:],
    "cispo": _CLIP[1:],
    "sapo": ("tau_pos", "tau_neg"),
    "gpg": (),
    "dro": (),
}
"""Our losses that veRL has too, each with the arguments above that it takes; written out because
reading them from the losses takes longer than the whole conversion."""
_LOSSES_WITH_OWN_SUM = ("gspo", "gspo_token", "geo_mean")


def convert_algorithm(work: Conversion) -> None:
    """Converts section `algorithm` without the optimizer."""
    has_penalty = work.settings.value("algorithm.use_kl_in_reward", False) is True
    advantage = _put_advantage(work, has_penalty)
    _put_advantage_args(work, advantage)
    _put_penalty(work, has_penalty)
    _put_kl_loss(work)
    _put_loss(work)
    _put_replay(work)


def _put_advantage(work: Conversion, has_penalty: bool) -> str:
    key = "algorithm.adv_estimator"
    estimator = str(work.settings.value(key, "gae"))
    origin = work.origin(key, estimator)
    if estimator not in ESTIMATORS:
        work.report_missing(
            key, "there is no such advantage: name one of docs/algorithms.md, or your own"
        )
    algorithm_type, advantage = ESTIMATORS.get(estimator, ("grpo", "grpo"))
    whitens = work.settings.value("algorithm.norm_adv_by_std_in_grpo", True) is not False
    note = ""
    if advantage == "grpo" and has_penalty:
        algorithm_type = advantage = "grpo_verl"
        note = "in the trainer, since use_kl_in_reward changes the rewards"
    elif advantage == "grpo" and not whitens:
        advantage, note = "dr_grpo", "norm_adv_by_std_in_grpo=False"
    work.put("algorithm.algorithm_type", algorithm_type, origin)
    work.copy("actor_rollout_ref.rollout.n", "algorithm.repeat_times", 1)
    work.put("algorithm.advantage_fn", advantage, origin, note)
    if advantage == "grpo_verl" and not whitens:
        name = "norm_adv_by_std_in_grpo"
        work.put(f"algorithm.advantage_fn_args.{name}", False, f"algorithm.{name}")
    if advantage == "remax":
        work.report.advice.append(
            "`advantage_fn: remax` needs the reward of a greedy rollout of each task: name a "
            "workflow of your own that puts it into each experience as `reward_baseline`"
        )
    return advantage


def _put_advantage_args(work: Conversion, advantage: str) -> None:
    takes = {"ppo": ("gamma", "lam"), "reinforce_plus_plus": ("gamma",)}.get(advantage, ())
    for name in ("gamma", "lam"):
        setting = work.settings.take(f"algorithm.{name}")
        if setting is None:
            continue
        if name in takes:
            work.put(f"algorithm.advantage_fn_args.{name}", setting.value, setting)
        else:
            work.report.not_needed.append((setting, f"`advantage_fn: {advantage}` has no `{name}`"))
    enable = work.settings.take("algorithm.filter_groups.enable")
    if enable is not None and enable.value is True:
        work.put("algorithm.advantage_fn_args.std_threshold", 0.0, enable)
    rounds = work.settings.take("algorithm.filter_groups.max_num_gen_batches")
    if rounds is not None and isinstance(rounds.value, int) and rounds.value > 0:
        work.put("buffer.max_refill_rounds", rounds.value, rounds)


def _put_penalty(work: Conversion, has_penalty: bool) -> None:
    key = "algorithm.use_kl_in_reward"
    args = "algorithm.kl_penalty_fn_args"
    if not has_penalty:
        work.put("algorithm.kl_penalty_fn", "none", work.origin(key, False))
        for name in ("kl_penalty", "kl_ctrl.kl_coef", "kl_ctrl.type", "kl_ctrl.horizon"):
            work.report_not_needed(
                f"algorithm.{name}", "without `use_kl_in_reward` it does nothing"
            )
        work.report_not_needed(
            "algorithm.kl_ctrl.target_kl", "without `use_kl_in_reward` it does nothing"
        )
        return
    kind = str(work.settings.value("algorithm.kl_penalty", "kl"))
    work.put(
        "algorithm.kl_penalty_fn",
        KL_NAMES.get(kind, kind),
        work.origin("algorithm.kl_penalty", kind),
    )
    work.copy("algorithm.kl_ctrl.kl_coef", f"{args}.kl_coef", 0.001)
    if work.settings.value("algorithm.kl_ctrl.type", "fixed") == "adaptive":
        work.put(f"{args}.adaptive", True, work.origin("algorithm.kl_ctrl.type", "adaptive"))
        work.copy("algorithm.kl_ctrl.horizon", f"{args}.horizon", 10000)
        work.copy("algorithm.kl_ctrl.target_kl", f"{args}.target_kl", 0.1)


def _put_kl_loss(work: Conversion) -> None:
    key = f"{ACTOR}.use_kl_loss"
    if work.settings.value(key, False) is not True:
        work.put("algorithm.kl_loss_fn", "none", work.origin(key, False))
        for name in ("kl_loss_coef", "kl_loss_type"):
            work.report_not_needed(f"{ACTOR}.{name}", "without `use_kl_loss` it does nothing")
        return
    kind = str(work.settings.value(f"{ACTOR}.kl_loss_type", "low_var_kl"))
    work.put(
        "algorithm.kl_loss_fn", KL_NAMES.get(kind, kind), work.origin(f"{ACTOR}.kl_loss_type", kind)
    )
    work.copy(f"{ACTOR}.kl_loss_coef", "algorithm.kl_loss_fn_args.kl_coef", 0.001)


def _put_loss(work: Conversion) -> None:
    loss = _chosen_loss(work)
    accepted = ARGUMENTS[loss]
    for verl, ours in LOSS_ARGUMENTS.items():
        setting = work.settings.take(f"{ACTOR}.{verl}")
        if setting is None or setting.value is None:
            continue
        if ours in accepted:
            work.put(f"algorithm.policy_loss_fn_args.{ours}", setting.value, setting)
        else:
            work.report.not_needed.append((setting, f"`policy_loss_fn: {loss}` has no `{ours}`"))
    mode = f"{ACTOR}.loss_agg_mode"
    if loss in _LOSSES_WITH_OWN_SUM:
        work.report_not_needed(mode, f"veRL's `{loss}` has a sum of its own, and so has ours")
    elif (setting := work.settings.take(mode)) is not None:
        work.put("algorithm.loss_agg_mode", setting.value, setting)


def _chosen_loss(work: Conversion) -> str:
    """Returns the loss by our name; writes it into the draft if veRL sets one."""
    bypass = work.settings.take(f"{_CORRECTION}.bypass_mode")
    mode, kind = f"{ACTOR}.policy_loss.loss_mode", f"{_CORRECTION}.loss_type"
    if bypass is not None:
        work.put("algorithm.bypass_old_logprobs", bypass.value, bypass)
    elif any(work.settings.peek(f"{_CORRECTION}.{name}") for name in ("rollout_is", "rollout_rs")):
        default = f"veRL's default {_CORRECTION}.bypass_mode=False"
        work.put("algorithm.bypass_old_logprobs", False, default)
    if bypass is None or bypass.value is not True:
        work.report_not_needed(kind, "veRL reads it only in bypass mode")
        return _named_loss(work, work.settings.take(mode), LOSS_NAMES)
    work.report_not_needed(mode, f"in bypass mode veRL uses `{kind}`")
    loss = _named_loss(work, work.settings.take(kind), BYPASS_LOSSES)
    for name in _WEIGHTS if loss == "ppo" else ():
        why = "in bypass mode the loss's ratio is the correction, veRL only measures these weights"
        work.report_not_needed(f"{_CORRECTION}.{name}", why)
    return loss


def _named_loss(work: Conversion, setting: VerlSetting | None, names: Mapping[str, str]) -> str:
    if setting is None or setting.value is None:
        return "ppo"
    loss = names.get(str(setting.value), str(setting.value))
    if loss not in ARGUMENTS:
        work.report.missing.append(
            (setting, "there is no such loss: `ppo` is used; write it as a function of your own")
        )
        return "ppo"
    work.put("algorithm.policy_loss_fn", loss, setting)
    return loss


def _put_replay(work: Conversion) -> None:
    """Converts router replay: expert choices of the rollout, replayed in training."""
    mode = work.settings.take(f"{ACTOR}.router_replay.mode")
    enabled = work.settings.take("actor_rollout_ref.rollout.enable_rollout_routing_replay")
    for setting, is_on in ((mode, "R3"), (enabled, True)):
        if setting is None:
            continue
        if setting.value == "R2":
            work.report.missing.append((setting, "only the rollout's replay (`R3`) is supported"))
        elif setting.value == is_on:
            work.put("algorithm.enable_router_replay", True, setting)
        else:
            work.report.not_needed.append((setting, "nothing is replayed by default"))
