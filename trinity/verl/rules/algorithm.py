"""The algorithm: advantages, the two KL terms, corrections and replay."""

from trinity.algorithm.units import COUNTS_UNITS, SAMPLE_UNIT, UNIT_ARGUMENT
from trinity.verl.rules.distillation import COUNTS_SAMPLES, is_distilled
from trinity.verl.rules.fork_functions import take_advantage
from trinity.verl.rules.losses import GVPO, LOSS_MODE, bypass_setting, put_loss
from trinity.verl.table.back_ends import BACK_ENDS
from trinity.verl.work import ACTOR, CORRECTION, Conversion

REPLAY_MODES = (
    f"{ACTOR}.router_replay.mode",
    *(f"{ACTOR}.{section}.router_replay.mode" for section in BACK_ENDS),
)
"""Keys that choose whose experts are repeated, of the actor or of its back end."""
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
    "gdpo": ("grpo", "gdpo"),
    "optimal_token_baseline": ("grpo", "optimal_token_baseline"),
    "tir_optimal_token_baseline": ("grpo", "tir_optimal_token_baseline"),
}
"""veRL's estimator to our algorithm type and advantage."""
PF_PPO = "algorithm.use_pf_ppo"
_DISCOUNTS = {
    "ppo": ("gamma", "lam"),
    "pf_ppo": ("gamma", "lam"),
    "reinforce_plus_plus": ("gamma",),
}
"""The veRL discount that an advantage uses."""
KL_NAMES = {
    "kl": "k1",
    "kl+": "k1+",
    "mse": "k2",
    "mse+": "k2",
    "k2+": "k2",
    "k3": "low_var_kl",
    "low_var_kl+": "k3+",
}
"""veRL's names of estimators, each with ours; its `k3` is bounded as `low_var_kl` is, ours not."""
OLDER_REJECTIONS = {"token": "token_k1", "sequence": "seq_sum_k1", "geometric": "seq_mean_k1"}
"""veRL's older names of `rollout_rs`: bounds of the ratio of a token, and of the product and the
geometric mean of a sequence's."""
_WITH_THRESHOLD = ("grpo", "dr_grpo", "grpo_passk")
_WITH_NORM = ("grpo_verl", "grpo_passk", "gdpo")
NO_LIMIT = 1000
"""Rounds of refills that no step needs."""
_ACCURACY = "data.filter_accuracy"
MEAN_FILTERS = (
    ("algorithm.filter_key", "algorithm.filter_low", "algorithm.filter_high"),
    (_ACCURACY, "data.accuracy_lower_bound", "data.accuracy_upper_bound"),
)
"""Keys of filters of groups, EasyR1's and PRIME's: the number, and the bounds of its mean."""
REWARD_ITSELF = "overall"
"""EasyR1's name of an answer's reward."""
PIPELINE = "data_processor.experience_pipeline.operators[0]"


def convert_algorithm(work: Conversion) -> None:
    """Converts section `algorithm` without the optimizer."""
    has_penalty = work.settings.value("algorithm.use_kl_in_reward", False) is True
    advantage = _put_advantage(work, has_penalty)
    _put_advantage_args(work, advantage)
    _put_penalty(work, has_penalty)
    _put_kl_loss(work)
    put_loss(work, advantage)
    _put_rejection(work)
    _put_replay(work)


def _put_advantage(work: Conversion, has_penalty: bool) -> str:
    key = "algorithm.adv_estimator"
    estimator = str(work.settings.value(key, "gae"))
    origin = work.origin(key, estimator)
    taken = take_advantage(work, estimator, is_known=estimator in ESTIMATORS)
    if taken:
        return _put_taken(work, taken, origin)
    if estimator not in ESTIMATORS:
        work.report_missing(
            key, "there is no such advantage: name one of docs/algorithms.md, or your own"
        )
    algorithm_type, advantage = ESTIMATORS.get(estimator, ("grpo", "grpo"))
    if advantage == "ppo" and work.settings.value(PF_PPO, False) is True:
        algorithm_type = advantage = "pf_ppo"
    if advantage == "grpo" and work.settings.peek(LOSS_MODE) == GVPO:
        return _put_gvpo(work)
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
    if advantage in COUNTS_UNITS and not is_distilled(work):
        unit = f"algorithm.advantage_fn_args.{UNIT_ARGUMENT}"
        work.put(unit, SAMPLE_UNIT, origin, COUNTS_SAMPLES)
    _put_whitening(work, advantage)
    return advantage


def _put_taken(work: Conversion, taken: str, origin: str) -> str:
    """Converts to an advantage of the script's own veRL, which compares the answers of a task."""
    work.put("algorithm.algorithm_type", "grpo", origin)
    work.copy("actor_rollout_ref.rollout.n", "algorithm.repeat_times", 1)
    work.put("algorithm.advantage_fn", taken, origin, "the function of your veRL")
    work.report_not_needed("algorithm.norm_adv_by_std_in_grpo", f"`{taken}` reads it, if any does")
    return taken


def _put_gvpo(work: Conversion) -> str:
    """Converts veRL's GVPO recipe, whose loss compares the answers of a group."""
    mode = work.settings.take(LOSS_MODE)
    assert mode is not None
    work.put("algorithm.algorithm_type", GVPO, mode)
    work.copy("actor_rollout_ref.rollout.n", "algorithm.repeat_times", 1)
    work.put("algorithm.advantage_fn", GVPO, mode, "its weights are made before each step")
    work.put(f"algorithm.advantage_fn_args.{UNIT_ARGUMENT}", SAMPLE_UNIT, mode, COUNTS_SAMPLES)
    work.copy(f"{ACTOR}.gvpo_beta", "algorithm.advantage_fn_args.beta", 0.1)
    note = "the sum of an answer's tokens, and the mean over answers"
    work.put("algorithm.loss_agg_mode", "seq-mean-token-sum", mode, note)
    _put_whitening(work, GVPO)
    if work.settings.peek("algorithm.norm_adv_by_std_in_grpo") is None:
        work.report.advice.append(
            "`advantage_fn: gvpo` fits rewards as they are, and veRL's recipe those of "
            "algorithm.norm_adv_by_std_in_grpo, True unless given: give False there, as the paper "
            "has it, or scale `beta`"
        )
    return GVPO


def _put_whitening(work: Conversion, advantage: str) -> None:
    """Writes `norm_adv_by_std_in_grpo` where it is an argument of the advantage."""
    name = "norm_adv_by_std_in_grpo"
    setting = work.settings.take(f"algorithm.{name}")
    if setting is None or setting.value is not False or advantage == "dr_grpo":
        return
    if advantage == GVPO:
        work.report.not_needed.append((setting, "`advantage_fn: gvpo` never divides by it"))
    elif advantage in _WITH_NORM:
        work.put(f"algorithm.advantage_fn_args.{name}", False, setting)
    else:
        why = f"veRL's `{advantage}` does not read it, nor does ours"
        work.report.not_needed.append((setting, why))


def _put_advantage_args(work: Conversion, advantage: str) -> None:
    takes = _DISCOUNTS.get(advantage, ())
    for name in ("gamma", "lam"):
        if name in takes:
            work.copy(f"algorithm.{name}", f"algorithm.advantage_fn_args.{name}", 1.0)
        else:
            work.report_not_needed(
                f"algorithm.{name}", f"`advantage_fn: {advantage}` has no `{name}`"
            )
    if advantage == "gdpo":
        _put_reward_parts(work)
    _put_filtration(work, advantage)
    _put_filter(work, advantage)


def _put_filtration(work: Conversion, advantage: str) -> None:
    """Converts PF-PPO's weights of rows."""
    work.report_not_needed(PF_PPO, "veRL reads it with `adv_estimator: gae` alone")
    for name in ("reweight_method", "weight_pow"):
        key = f"algorithm.pf_ppo.{name}"
        if advantage != "pf_ppo":
            work.report_not_needed(key, "without `use_pf_ppo`")
        elif (setting := work.settings.take(key)) is not None:
            work.put(f"algorithm.advantage_fn_args.{name}", setting.value, setting)


def _put_reward_parts(work: Conversion) -> None:
    """Converts the parts of the reward that GDPO compares, with their weights."""
    keys = work.settings.take("algorithm.gdpo_reward_keys")
    weights = work.settings.value("algorithm.gdpo_reward_weights", None)
    if keys is None or not isinstance(keys.value, list):
        return
    factors = weights if isinstance(weights, list) else [1.0] * len(keys.value)
    for name, factor in zip(keys.value, factors, strict=False):
        work.put(f"algorithm.advantage_fn_args.reward_weights.{name}", factor, keys)


def _put_filter(work: Conversion, advantage: str) -> None:
    """Converts the filter of groups whose samples are all alike."""
    section = "algorithm.filter_groups"
    enable = work.settings.take(f"{section}.enable") or work.settings.take(_ACCURACY)
    names = ("metric", "max_num_gen_batches", "max_inflight_gen_batches")
    if enable is None or enable.value is not True:
        others = [key for keys in MEAN_FILTERS for key in keys]
        for name in (*(f"{section}.{name}" for name in names), *others):
            work.report_not_needed(name, "without `filter_groups.enable`")
        return
    metric = work.settings.take(f"{section}.metric")
    if not _put_mean_filter(work):
        if metric is not None and metric.value == "acc":
            work.put(f"{PIPELINE}.name", "dapo_dynamic_sampling", metric)
        elif advantage in _WITH_THRESHOLD:
            key = "algorithm.advantage_fn_args.std_threshold"
            work.put(key, 0.0, enable, "groups of one reward")
        else:
            work.put(f"{PIPELINE}.name", "reward_std_filter", enable, "groups of one reward")
    _put_rounds(work, f"{section}.max_num_gen_batches")
    why = "refills are drawn as they are needed (`buffer.max_refill_rounds`)"
    work.report_left_out(f"{section}.max_inflight_gen_batches", why)


def _put_mean_filter(work: Conversion) -> bool:
    """Converts bounds of a group's mean; returns False without them."""
    for metric, lower, upper in MEAN_FILTERS:
        least, most = work.settings.take(lower), work.settings.take(upper)
        if least is None or most is None:
            continue
        work.put(f"{PIPELINE}.name", "group_mean_filter", least)
        name = work.settings.take(metric)
        if name is not None and name.value not in (REWARD_ITSELF, True):
            work.put(f"{PIPELINE}.args.metric_key", name.value, name)
        work.put(f"{PIPELINE}.args.lower", least.value, least)
        work.put(f"{PIPELINE}.args.upper", most.value, most)
        return True
    return False


def _put_rounds(work: Conversion, key: str) -> None:
    """Converts the most batches that are generated for a step; veRL fails after them."""
    rounds = work.settings.take(key)
    if rounds is not None and isinstance(rounds.value, int) and rounds.value > 0:
        work.put("buffer.max_refill_rounds", rounds.value, rounds)
        work.put("buffer.short_batch", "fail", rounds, "as in veRL when the limit is reached")
    else:
        work.put("buffer.max_refill_rounds", NO_LIMIT, work.origin(key, 0), "no limit in veRL")


def _put_penalty(work: Conversion, has_penalty: bool) -> None:
    key = "algorithm.use_kl_in_reward"
    args = "algorithm.kl_penalty_fn_args"
    if not has_penalty:
        work.put("algorithm.kl_penalty_fn", "none", work.origin(key, False))
        for name in ("kl_penalty", "kl_ctrl.kl_coef", "kl_ctrl.type", "kl_ctrl.horizon"):
            work.report_not_needed(f"algorithm.{name}", "it is ignored without `use_kl_in_reward`")
        work.report_not_needed(
            "algorithm.kl_ctrl.target_kl", "it is ignored without `use_kl_in_reward`"
        )
        return
    kind = str(work.settings.value("algorithm.kl_penalty", "kl"))
    work.put(
        "algorithm.kl_penalty_fn",
        KL_NAMES.get(kind, kind),
        work.origin(key, True),
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
            work.report_not_needed(f"{ACTOR}.{name}", "it is ignored without `use_kl_loss`")
        return
    kind = str(work.settings.value(f"{ACTOR}.kl_loss_type", "low_var_kl"))
    work.put(
        "algorithm.kl_loss_fn", KL_NAMES.get(kind, kind), work.origin(f"{ACTOR}.kl_loss_type", kind)
    )
    work.copy(f"{ACTOR}.kl_loss_coef", "algorithm.kl_loss_fn_args.kl_coef", 0.001)


def convert_old_logprobs(work: Conversion) -> None:
    """Writes where the old log-probabilities come from, once steps and offset are known.

    veRL computes them with the weights at the start of its step, of which `sync_interval` steps
    here are one. The trainer's own before each step here would forget all but the last of them, so
    they are taken only where both are the same, or where a correction makes up for it.
    """
    bypass = bypass_setting(work)
    older = work.settings.take("async_training.use_rollout_log_probs")
    if not work.settings.peek("async_training.compute_prox_log_prob"):
        bypass = bypass or older
    key = "algorithm.bypass_old_logprobs"
    origin = bypass or f"veRL's default of {CORRECTION}.bypass_mode=False"
    is_corrected = any(
        work.settings.peek(f"{CORRECTION}.{name}") for name in ("rollout_is", "rollout_rs")
    )
    is_strict = (
        work.draft.get("synchronizer.sync_interval") == 1
        and work.draft.get("synchronizer.sync_offset") == 0
    )
    if bypass is not None and bypass.value is True:
        work.put(key, True, bypass)
    elif is_corrected or is_strict:
        work.put(key, False, origin)
    else:
        note = "a ratio to the weights of the rollout, which began veRL's step"
        work.put(key, True, origin, note)


def _put_rejection(work: Conversion) -> None:
    """Converts the older names of rejection, whose two bounds are one text today."""
    kind = work.settings.peek(f"{CORRECTION}.rollout_rs")
    if not isinstance(kind, str) or kind not in OLDER_REJECTIONS:
        return
    setting = work.settings.take(f"{CORRECTION}.rollout_rs")
    assert setting is not None
    work.put(f"{CORRECTION}.rollout_rs", OLDER_REJECTIONS[kind], setting)
    bound = work.settings.take(f"{CORRECTION}.rollout_rs_threshold")
    given = (
        work.settings.peek(f"{CORRECTION}.rollout_is_threshold") if bound is None else bound.value
    )
    upper = given if isinstance(given, int | float) else 2.0
    lower = work.settings.value(f"{CORRECTION}.rollout_rs_threshold_lower", None)
    least = lower if isinstance(lower, int | float) else 1 / upper
    note = "as veRL's older two bounds" if lower is not None else "veRL's older lower bound is 1/x"
    bounds = f"{least:g}_{upper:g}"
    work.put(f"{CORRECTION}.rollout_rs_threshold", bounds, bound or setting, note)


def _put_replay(work: Conversion) -> None:
    """Converts router replay: expert choices of the rollout, replayed in training."""
    for key in (*REPLAY_MODES, "actor_rollout_ref.rollout.enable_rollout_routing_replay"):
        setting = work.settings.take(key)
        if setting is None:
            continue
        if setting.value in ("R2", "R3", True):
            work.put("algorithm.enable_router_replay", True, setting)
        else:
            work.report.not_needed.append((setting, "router replay is off by default"))
        if setting.value == "R2":
            work.report.advice.append(
                f"{key}=R2 ({setting.where}) repeats in each update the experts of the trainer's "
                "own pass for old log-probabilities; here all passes repeat those that the engine "
                "chose, which is veRL's `R3`"
            )
