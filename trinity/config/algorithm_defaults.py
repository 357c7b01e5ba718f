"""What each algorithm consists of unless the user says otherwise, and each part's arguments."""

from dataclasses import dataclass

from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.config.algorithm import AlgorithmConfig, EntropyLossFn, KlFn
from trinity.config.mode import Mode
from trinity.config.near import did_you_mean
from trinity.config.plan import ResolvedAlgorithm
from trinity.config.section import Args
from trinity.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmDefaults:
    """The parts of an algorithm."""

    mode: Mode
    advantage_fn: str
    policy_loss_fn: str
    kl_loss_fn: KlFn
    entropy_loss_fn: EntropyLossFn


ALGORITHMS = {
    "grpo": AlgorithmDefaults(
        mode="both",
        advantage_fn="grpo",
        policy_loss_fn="ppo",
        kl_loss_fn="k2",
        entropy_loss_fn="default",
    ),
    "sft": AlgorithmDefaults(
        mode="train",
        advantage_fn="none",
        policy_loss_fn="sft",
        kl_loss_fn="none",
        entropy_loss_fn="none",
    ),
}

_KL_ARGS: Args = {"kl_coef": 0.001, "adaptive": False, "target_kl": None, "horizon": None}
_KL_FUNCTIONS = ("none", "k1", "k2", "k3", "low_var_kl", "abs")
FUNCTION_ARGS: dict[str, dict[str, Args]] = {
    "advantage_fn": {"none": {}, "grpo": {"epsilon": 1e-6}},
    "policy_loss_fn": {
        "sft": {},
        "ppo": {
            "clip_range": 0.2,
            "clip_range_low": None,
            "clip_range_high": None,
            "clip_ratio_c": 3.0,
        },
    },
    "kl_penalty_fn": dict.fromkeys(_KL_FUNCTIONS, _KL_ARGS),
    "kl_loss_fn": dict.fromkeys(_KL_FUNCTIONS, _KL_ARGS),
    "entropy_loss_fn": {"none": {"entropy_coef": 0.0}, "default": {"entropy_coef": 0.0}},
}
"""Arguments of the functions that come with the system; None in `ppo` is `clip_range`'s value."""


def resolve_algorithm(config: AlgorithmConfig, mode: Mode, stage: str) -> ResolvedAlgorithm:
    """The user's parts and arguments laid over the algorithm's."""
    defaults = _defaults_of(config, mode, stage)
    advantage_fn = config.advantage_fn or defaults.advantage_fn
    policy_loss_fn = config.policy_loss_fn or defaults.policy_loss_fn
    kl_penalty_fn = config.kl_penalty_fn or "none"
    kl_loss_fn = config.kl_loss_fn or defaults.kl_loss_fn
    entropy_loss_fn = config.entropy_loss_fn or defaults.entropy_loss_fn

    def args(part: str, function: str, given: Args) -> Args:
        return _complete_args(part, function, given, stage)

    return ResolvedAlgorithm(
        algorithm_type=config.algorithm_type,
        row_schema="sft" if mode == "train" else "experience",
        repeat_times=config.repeat_times,
        sample_strategy=config.sample_strategy or "default",
        sample_strategy_args=config.sample_strategy_args,
        advantage_fn=advantage_fn,
        advantage_fn_args=args("advantage_fn", advantage_fn, config.advantage_fn_args),
        advantage_in_trainer=advantage_fn in TOKEN_ADVANTAGES.names(),
        policy_loss_fn=policy_loss_fn,
        policy_loss_fn_args=args("policy_loss_fn", policy_loss_fn, config.policy_loss_fn_args),
        kl_penalty_fn=kl_penalty_fn,
        kl_penalty_fn_args=args("kl_penalty_fn", kl_penalty_fn, config.kl_penalty_fn_args),
        kl_loss_fn=kl_loss_fn,
        kl_loss_fn_args=args("kl_loss_fn", kl_loss_fn, config.kl_loss_fn_args),
        entropy_loss_fn=entropy_loss_fn,
        entropy_loss_fn_args=args("entropy_loss_fn", entropy_loss_fn, config.entropy_loss_fn_args),
        loss_agg_mode=config.loss_agg_mode or "token-mean",
        needs_critic=False,
        can_balance_batch=True,
        bypass_old_logprobs=config.bypass_old_logprobs,
        rollout_correction=config.rollout_correction,
    )


def _defaults_of(config: AlgorithmConfig, mode: Mode, stage: str) -> AlgorithmDefaults:
    name = config.algorithm_type
    if name not in ALGORITHMS:
        raise UserError(
            f"stage `{stage}`: `algorithm.algorithm_type: {name}` is not supported"
            f"{did_you_mean(name, ALGORITHMS)}"
        )
    defaults = ALGORITHMS[name]
    if defaults.mode != mode:
        raise UserError(
            f"stage `{stage}`: `algorithm.algorithm_type: {name}` runs in `mode: {defaults.mode}`, "
            f"not in `mode: {mode}`: change one of the two"
        )
    if name == "grpo" and config.repeat_times < 2:
        raise UserError(
            f"stage `{stage}`: grpo compares the runs of one task, with "
            f"`algorithm.repeat_times: {config.repeat_times}` there are none: give 2 or more"
        )
    return defaults


def _complete_args(part: str, function: str, given: Args, stage: str) -> Args:
    if function not in FUNCTION_ARGS[part]:
        if "." in function:
            return given
        raise UserError(
            f"stage `{stage}`: `algorithm.{part}: {function}` is not supported"
            f"{did_you_mean(function, FUNCTION_ARGS[part])}, or give a dotted path"
        )
    known = FUNCTION_ARGS[part][function]
    for key in given:
        if key not in known:
            raise UserError(
                f"stage `{stage}`: `{function}` has no argument `algorithm.{part}_args.{key}`"
                f"{did_you_mean(key, known)}"
            )
    return _with_clip_range({**known, **given})


def _with_clip_range(args: Args) -> Args:
    if "clip_range" not in args:
        return args
    low, high = args["clip_range_low"], args["clip_range_high"]
    return {
        **args,
        "clip_range_low": args["clip_range"] if low is None else low,
        "clip_range_high": args["clip_range"] if high is None else high,
    }
