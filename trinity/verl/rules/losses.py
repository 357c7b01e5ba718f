"""The policy loss, its arguments and its aggregation."""

from collections.abc import Iterator, Mapping

from trinity.verl.rules.fork_functions import FUNCTIONS, take_loss
from trinity.verl.settings import VerlSetting
from trinity.verl.values import JsonValue
from trinity.verl.work import ACTOR, CORRECTION, Conversion

GVPO = "gvpo"
LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"
LOSS_NAMES = {"vanilla": "ppo"}
BYPASS_LOSSES = {"ppo_clip": "ppo", "reinforce": "gpg"}
"""Losses by `rollout_correction.loss_type`, which decides in bypass mode; `reinforce` has no ratio
and is weighted by the correction alone, like `gpg`."""
_WEIGHTS = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize")
LOSS_ARGUMENTS = {
    "clip_ratio": "clip_range",
    "clip_ratio_low": "clip_range_low",
    "clip_ratio_high": "clip_range_high",
    "clip_ratio_c": "clip_ratio_c",
    "tau_pos": "tau_pos",
    "tau_neg": "tau_neg",
    "policy_loss.clip_cov_ratio": "clip_cov_ratio",
    "policy_loss.clip_cov_lb": "clip_cov_lb",
    "policy_loss.clip_cov_ub": "clip_cov_ub",
    "policy_loss.kl_cov_ratio": "kl_cov_ratio",
    "policy_loss.ppo_kl_coef": "ppo_kl_coef",
    "policy_loss.dro_beta": "dro_beta",
    "policy_loss.m2_budget": "m2_threshold",
    "policy_loss.tau_pos": "tau_pos",
    "policy_loss.tau_neg": "tau_neg",
    "clip_cov_ratio": "clip_cov_ratio",
    "clip_cov_lb": "clip_cov_lb",
    "clip_cov_ub": "clip_cov_ub",
    "k_percent": "kl_cov_ratio",
    "kl_cov_ratio": "kl_cov_ratio",
    "ppo_kl_coef": "ppo_kl_coef",
}
"""The longer names are current, the shorter ones at the end come from older veRL recipes."""
LOSS_DEFAULTS: Mapping[str, JsonValue] = {
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
    "clip_ratio_c": 3.0,
    "tau_pos": 1.0,
    "tau_neg": 1.05,
    "policy_loss.clip_cov_ratio": 0.0002,
    "policy_loss.clip_cov_lb": 1.0,
    "policy_loss.clip_cov_ub": 5.0,
    "policy_loss.kl_cov_ratio": 0.0002,
    "policy_loss.ppo_kl_coef": 0.1,
}
"""veRL's defaults of the arguments above; `clip_ratio` acts in veRL only where both others are
null."""
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
    "clip_cov": (*_CLIP, "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub"),
    "kl_cov": ("kl_cov_ratio", "ppo_kl_coef"),
    "gpg": (),
    "dro": ("dro_beta",),
    "m2po": ("m2_threshold",),
}
"""Our losses that veRL has too, each with the arguments above that it takes; written out because
reading them from the losses takes longer than the whole conversion."""
AGG_MODE = "token-mean"
"""veRL's default of `loss_agg_mode`."""
_TOKEN_LEVEL = f"{ACTOR}.use_token_level_loss"
_AGG_MODES = {
    "gspo": "seq-mean-token-mean",
    "gspo_token": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "geo_mean": "",
}
"""veRL losses that ignore `loss_agg_mode`, with the mode they use; empty if our loss ignores it,
too."""
_OF_TOKENS = (
    "ppo",
    "pf_ppo",
    "reinforce_plus_plus",
    "optimal_token_baseline",
    "tir_optimal_token_baseline",
)
"""Advantages that differ within an answer."""


def put_loss(work: Conversion, advantage: str) -> None:
    if advantage == GVPO:
        work.put("algorithm.policy_loss_fn", "gpg", "GVPO's weights times the log-probability")
        for verl in (*LOSS_ARGUMENTS, "loss_agg_mode"):
            work.report_not_needed(f"{ACTOR}.{verl}", "GVPO has neither ratios nor clipping")
        return
    loss = _chosen_loss(work)
    if loss.startswith(FUNCTIONS):
        for verl in LOSS_ARGUMENTS:
            work.report_not_needed(f"{ACTOR}.{verl}", f"`{loss}` reads it, if any code does")
        _put_agg_mode(work, loss)
        return
    if loss == "gspo" and advantage in _OF_TOKENS:
        loss, note = "gspo_token", "veRL's `gspo`, for advantages that differ within an answer"
        work.put("algorithm.policy_loss_fn", loss, LOSS_MODE, note)
    for verl, ours in LOSS_ARGUMENTS.items():
        _put_loss_argument(work, loss, verl, ours)
    if loss == "dro" and work.draft.get("algorithm.policy_loss_fn_args.dro_beta") is None:
        work.report.advice.append(
            "`policy_loss_fn: dro` has no usual strength in veRL: give "
            "`algorithm.policy_loss_fn_args.dro_beta`"
        )
    if work.settings.has(f"{ACTOR}.clip_ratio") and "clip_range" in ARGUMENTS[loss]:
        _advise_on_clipping(work)
    _put_agg_mode(work, loss)


def _put_loss_argument(work: Conversion, loss: str, verl: str, ours: str) -> None:
    """Writes an argument that the loss takes: as it is set, or veRL's default."""
    key, argument = f"{ACTOR}.{verl}", f"algorithm.policy_loss_fn_args.{ours}"
    setting = work.settings.take(key)
    is_taken = ours in ARGUMENTS[loss]
    if setting is None or setting.value is None:
        if is_taken and setting is None and verl in LOSS_DEFAULTS:
            work.put(argument, LOSS_DEFAULTS[verl], f"veRL's default of {key}")
    elif is_taken:
        work.put(argument, setting.value, setting)
    else:
        work.report.not_needed.append((setting, f"`policy_loss_fn: {loss}` has no `{ours}`"))


def _advise_on_clipping(work: Conversion) -> None:
    """Points out that veRL reads `clip_ratio` only where the other two are null."""
    unset = [
        name
        for name in ("clip_ratio_low", "clip_ratio_high")
        if not work.settings.has(f"{ACTOR}.{name}")
    ]
    if unset:
        work.report.advice.append(
            f"{ACTOR}.clip_ratio: veRL's {' and '.join(unset)} is 0.2 unless given, and goes "
            "before `clip_ratio`, as here: give `clip_range_low` and `clip_range_high` to clip "
            "elsewhere"
        )


def _put_agg_mode(work: Conversion, loss: str) -> None:
    key = f"{ACTOR}.loss_agg_mode"
    setting = work.settings.take(key) or _older_mode(work)
    given = AGG_MODE if setting is None or setting.value is None else setting.value
    fixed = _AGG_MODES.get(loss)
    if fixed is None or not fixed:
        work.put("algorithm.loss_agg_mode", given, setting or f"veRL's default of {key}")
        return
    work.put("algorithm.loss_agg_mode", fixed, f"veRL's {loss} adds up so, whatever {key} is")
    if given == fixed:
        return
    terms = list(_other_terms(work))
    if terms:
        work.report.advice.append(
            f"`algorithm.loss_agg_mode: {fixed}` is the mode of veRL's `{loss}` loss, while veRL "
            f"aggregates {' and '.join(terms)} by {key}={given}; here all share one mode"
        )
    if setting is not None:
        why = f"`{loss}` ignores it, in veRL and here"
        work.report.not_needed.append((setting, why))


def _older_mode(work: Conversion) -> VerlSetting | None:
    """The mode by the key of DAPO's first code, false for the mean of each answer's mean."""
    older = work.settings.take(_TOKEN_LEVEL)
    if older is None:
        return None
    value = AGG_MODE if older.value is True else "seq-mean-token-mean"
    return VerlSetting(key=_TOKEN_LEVEL, value=value, where=older.where)


def _other_terms(work: Conversion) -> Iterator[str]:
    """Names the terms of the loss other than the policy loss."""
    if work.settings.peek(f"{ACTOR}.use_kl_loss") is True:
        yield "the KL loss"
    if work.settings.peek(f"{ACTOR}.entropy_coeff"):
        yield "the entropy"


def _chosen_loss(work: Conversion) -> str:
    """Returns the loss by our name; writes it into the draft if veRL sets one."""
    bypass = bypass_setting(work)
    mode, kind = LOSS_MODE, f"{CORRECTION}.loss_type"
    if (older := work.settings.take(f"{ACTOR}.loss_mode")) is not None:
        if work.settings.has(mode):
            work.report.not_needed.append((older, f"`{mode}` decides"))
        else:
            work.settings.put(VerlSetting(key=mode, value=older.value, where=older.where))
    if bypass is None or bypass.value is not True:
        work.report_not_needed(kind, "veRL reads it only in bypass mode")
        return _named_loss(work, work.settings.take(mode), LOSS_NAMES)
    work.report_not_needed(mode, f"in bypass mode veRL uses `{kind}`")
    loss = _named_loss(work, work.settings.take(kind), BYPASS_LOSSES)
    for name in _WEIGHTS if loss == "ppo" else ():
        why = "in bypass mode the loss's ratio is the correction, veRL only measures these weights"
        work.report_not_needed(f"{CORRECTION}.{name}", why)
    return loss


def _agg_mode_of_copy(work: Conversion) -> str:
    """The aggregation of a copy's loss; older ones have another key, or average tokens."""
    if work.settings.peek(_TOKEN_LEVEL) is False:
        return "seq-mean-token-mean"
    return str(work.settings.peek(f"{ACTOR}.loss_agg_mode") or AGG_MODE)


def bypass_setting(work: Conversion) -> VerlSetting | None:
    """Takes the key that chooses the old log-probabilities, under its name or its older one."""
    older = work.settings.take(f"{ACTOR}.use_rollout_log_probs")
    return work.settings.take(f"{CORRECTION}.bypass_mode") or older


def _named_loss(work: Conversion, setting: VerlSetting | None, names: Mapping[str, str]) -> str:
    given = "vanilla" if setting is None or setting.value is None else str(setting.value)
    is_known = names.get(given, given) in ARGUMENTS
    if taken := take_loss(work, given, _agg_mode_of_copy(work), is_known=is_known):
        origin = setting or f"veRL's default of {LOSS_MODE}=vanilla"
        work.put("algorithm.policy_loss_fn", taken, origin, "the function of your veRL")
        return taken
    if setting is None or setting.value is None:
        default = f"veRL's default of {ACTOR}.policy_loss.loss_mode=vanilla"
        work.put("algorithm.policy_loss_fn", "ppo", default)
        return "ppo"
    loss = names.get(str(setting.value), str(setting.value))
    if loss not in ARGUMENTS:
        work.report.missing.append(
            (setting, "there is no such loss: `ppo` is used; write it as a function of your own")
        )
        return "ppo"
    work.put("algorithm.policy_loss_fn", loss, setting)
    return loss
