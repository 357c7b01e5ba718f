"""The algorithm of a stage: the user's parts and arguments laid over those of its type."""

from functools import partial

from trinity.algorithm.algorithm_type import AlgorithmType, Part
from trinity.algorithm.forms import TOKEN_ADVANTAGE
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.token_advantage import needs_of
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.config.algorithm import AlgorithmConfig
from trinity.config.algorithm_parts import FoundPart, find_part
from trinity.config.gathered import Gathered, all_of
from trinity.config.mode import Mode
from trinity.config.near import did_you_mean
from trinity.config.plan_parts import ResolvedAlgorithm
from trinity.config.section import Args
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment

PARTS: tuple[Part, ...] = (
    "sample_strategy",
    "advantage_fn",
    "policy_loss_fn",
    "kl_penalty_fn",
    "kl_loss_fn",
    "entropy_loss_fn",
)
AGG_MODES_OF_LOSSES = {"gspo": "seq-mean-token-mean", "gspo_token": "seq-mean-token-mean"}
"""Losses whose tokens share one ratio per row average over rows."""
_OF_ROLLOUTS: tuple[Part, ...] = ("sample_strategy", "advantage_fn", "kl_penalty_fn")
"""Parts that are not used if the rows are data."""


def resolve_algorithm(config: AlgorithmConfig, mode: Mode, stage: str) -> ResolvedAlgorithm:
    """Returns all parts with all their arguments.

    Raises: UserError naming the stage and each setting that cannot be used.
    """
    try:
        return _resolved(config, _type_of(config.algorithm_type, mode))
    except UserError as error:
        lines = str(error).splitlines()
        raise UserError("\n".join(f"stage `{stage}`: {line}" for line in lines)) from error


def _type_of(name: str, mode: Mode) -> AlgorithmType:
    if name not in ALGORITHM_TYPES.names():
        load_plugins(plugin_dirs_from_environment())
    if name not in ALGORITHM_TYPES.names():
        raise UserError(
            f"`algorithm.algorithm_type: {name}` is not supported"
            f"{did_you_mean(name, ALGORITHM_TYPES.names())}"
        )
    declared = ALGORITHM_TYPES.get(name)
    if not isinstance(declared, AlgorithmType):
        raise UserError(
            f"`algorithm.algorithm_type: {name}` is registered as {type(declared).__name__}: "
            "register a trinity.algorithm.algorithm_type.AlgorithmType"
        )
    if mode not in declared.modes:
        raise UserError(
            f"`algorithm.algorithm_type: {name}` runs in `mode: {declared.modes[0]}`, "
            f"not in `mode: {mode}`: change one of the two"
        )
    return declared


def _resolved(config: AlgorithmConfig, declared: AlgorithmType) -> ResolvedAlgorithm:
    gathered = Gathered()
    parts = gathered.of(lambda: all_of([partial(_part, part, config, declared) for part in PARTS]))
    repeat_times = gathered.of(lambda: _repeat_times(config, declared))
    gathered.raise_all()
    assert parts and repeat_times
    values: dict[str, object] = {}
    for found, arguments in parts:
        values |= {found.part: found.name, f"{found.part}_args": arguments}
    advantage = next(found for found, _ in parts if found.part == "advantage_fn")
    has_rollouts = declared.schema == "experience"
    return ResolvedAlgorithm.model_validate(
        {
            **values,
            "algorithm_type": declared.name,
            "row_schema": declared.schema,
            "repeat_times": repeat_times,
            "advantage_in_trainer": advantage.form is TOKEN_ADVANTAGE,
            "loss_agg_mode": config.loss_agg_mode or _agg_mode(config.policy_loss_fn, declared),
            "needs_critic": _needs_critic(advantage, declared),
            "can_balance_batch": declared.can_balance_batch,
            "bypass_old_logprobs": config.bypass_old_logprobs or not has_rollouts,
            "rollout_correction": config.rollout_correction.settings
            if has_rollouts
            else CorrectionSettings(),
        }
    )


def _part(part: Part, config: AlgorithmConfig, declared: AlgorithmType) -> tuple[FoundPart, Args]:
    """The user's choice or the type's; the type's arguments go with the type's choice only."""
    default: str = getattr(declared, part)
    is_ignored = declared.schema != "experience" and part in _OF_ROLLOUTS
    chosen: str | None = None if is_ignored else getattr(config, part)
    arguments: Args = {} if is_ignored else getattr(config, f"{part}_args")
    found = find_part(part, chosen or default)
    own = dict(declared.args.get(part, {})) if found.name == default else {}
    return found, found.arguments(own, arguments)


def _repeat_times(config: AlgorithmConfig, declared: AlgorithmType) -> int:
    times = config.repeat_times or declared.repeat_times
    if times < declared.min_repeat_times:
        raise UserError(
            f"{declared.name} compares the runs of one task, with "
            f"`algorithm.repeat_times: {times}` there are none: give "
            f"{declared.min_repeat_times} or more"
        )
    return times


def _agg_mode(chosen_loss: str | None, declared: AlgorithmType) -> str:
    """The type's mode for the type's loss; some other losses have a mode of their own."""
    if chosen_loss in (None, declared.policy_loss_fn):
        return declared.loss_agg_mode
    return AGG_MODES_OF_LOSSES.get(chosen_loss, declared.loss_agg_mode)


def _needs_critic(advantage: FoundPart, declared: AlgorithmType) -> bool:
    """True if the advantage needs values; for a user's own advantage the type decides."""
    if advantage.is_own:
        return declared.needs_critic and advantage.form is TOKEN_ADVANTAGE
    return "values" in needs_of(advantage.name)
