"""Resolves an algorithm: its parts, with their arguments checked and complete."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.algorithm_type import AlgorithmType, Part
from trinity.algorithm.entropy import ENTROPY_LOSSES
from trinity.algorithm.forms import (
    ENTROPY_LOSS,
    GROUP_ADVANTAGE,
    POLICY_LOSS,
    TOKEN_ADVANTAGE,
    RequiredSignature,
    matching_signature,
)
from trinity.algorithm.kl import DIVERGENCES
from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.sampling import SAMPLE_STRATEGIES
from trinity.algorithm.signature import Signature, read_signature
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES, needs_of
from trinity.algorithm.types import ALGORITHM_TYPES
from trinity.algorithm.types_without_rewards import ON_ROWS
from trinity.config.error_collector import ErrorCollector, all_of, did_you_mean
from trinity.config.plan.parts import ResolvedAlgorithm
from trinity.config.schema.algorithm import AlgorithmConfig
from trinity.config.schema.base import Args
from trinity.config.schema.choices import Mode
from trinity.config.schema.data import ExperienceBufferConfig
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.user_code.adapted_part import AdaptedPart

KL_CONTROLLER = "trinity.algorithm.kl.controller.kl_controller"
PARTS: tuple[Part, ...] = (
    "sample_strategy",
    "advantage_fn",
    "policy_loss_fn",
    "kl_penalty_fn",
    "kl_loss_fn",
    "entropy_loss_fn",
)
MODE_ARGUMENT = "loss_agg_mode"
AGG_MODES_OF_LOSSES = {"gspo": "seq-mean-token-mean", "gspo_token": "seq-mean-token-mean"}
"""Losses whose tokens share one ratio per row average over rows."""
_CUT = frozenset(
    {
        "repeat_times",
        "use_dynamic_bsz",
        "ppo_mini_batch_size",
        "ppo_micro_batch_size_per_gpu",
        "ngpus_trainer",
        "train_batch_size_usual",
        "train_batch_size_expert",
        "read_batch_size_usual",
        "read_batch_size_expert",
    }
)
ARGUMENTS_WITHOUT_EFFECT: Mapping[str, frozenset[str]] = {"mix": _CUT, "mix_chord": _CUT}
"""Arguments that Trinity-RFT's losses scale their micro-batches by; losses here need none of it."""
_OLD_MODE = "use_token_level_loss_in_sft"
"""Their argument before Trinity-RFT 0.4 for the average over the expert's rows."""
_OF_ROLLOUTS: tuple[Part, ...] = ("sample_strategy", "advantage_fn", "kl_penalty_fn")
"""Parts that are not used if the rows are data."""


def merge_arguments(
    signature: Signature, given: Args, *, function: str, key: str, is_own: bool
) -> Args:
    """Merges the given arguments over the function's defaults (a user's function has its own).

    Raises: UserError naming an argument that is unknown, wrong or missing.
    """
    known = signature.arguments
    for name, value in given.items():
        if name not in known and not signature.takes_any:
            raise UserError(
                f"`{function}` has no argument `{key}.{name}`{did_you_mean(name, known)}"
            )
        if name in known and not known[name].allows(value):
            raise UserError(f"`{key}.{name}` must be {known[name].type_description}, not {value!r}")
    complete = {**({} if is_own else signature.defaults), **given}
    for name, argument in known.items():
        if argument.is_required and name not in complete:
            raise UserError(f"`{function}` needs the argument `{key}.{name}`: give it")
    return complete


class FunctionRegistry(Protocol):
    """A registry of functions of any kind."""

    @property
    def builtins(self) -> Mapping[str, str]:
        """Dotted paths by name."""

    def names(self) -> list[str]:
        """Every name."""

    def get(self, key: str) -> object:
        """The function with this name or at this dotted path."""

    def is_own(self, name: str) -> bool:
        """True for a part that a plugin has registered."""

    def plan_name(self, name: str) -> str:
        """The name by which all processes find a user's part."""


_REGISTRIES: Mapping[str, tuple[FunctionRegistry, ...]] = {
    "algorithm_type": (ALGORITHM_TYPES,),
    "sample_strategy": (SAMPLE_STRATEGIES,),
    "advantage_fn": (ADVANTAGES, TOKEN_ADVANTAGES),
    "policy_loss_fn": (POLICY_LOSSES,),
    "kl_penalty_fn": (DIVERGENCES,),
    "kl_loss_fn": (DIVERGENCES,),
    "entropy_loss_fn": (ENTROPY_LOSSES,),
}
"""Built-in names of these may be written in capitals, as choices of other keys may."""
_OWN: dict[Part, tuple[tuple[FunctionRegistry, RequiredSignature], ...]] = {
    "advantage_fn": ((ADVANTAGES, GROUP_ADVANTAGE), (TOKEN_ADVANTAGES, TOKEN_ADVANTAGE)),
    "policy_loss_fn": ((POLICY_LOSSES, POLICY_LOSS),),
    "entropy_loss_fn": ((ENTROPY_LOSSES, ENTROPY_LOSS),),
}
"""Parts that users may bring."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmPart:
    """A function, not called yet."""

    part: Part
    name: str
    signature: Signature
    form: RequiredSignature | None = None
    """How it is called, for parts that users may bring."""
    is_own: bool = False
    """True for a user's function."""
    defaults: Args = field(default_factory=dict)
    """User values for the arguments of a built-in function."""
    reads_reference: bool = False
    """True for a loss that wants the reference model's log-probabilities."""

    def arguments(self, declared: Args, given: Args) -> Args:
        """Merges the user's arguments over the type's and the defaults (a user's part has its own).

        Raises: UserError naming an argument that is unknown, wrong or missing.
        """
        unread = (
            () if self.part != "policy_loss_fn" else ARGUMENTS_WITHOUT_EFFECT.get(self.name, ())
        )
        read = {name: value for name, value in given.items() if name not in unread}
        if unread and isinstance(read.get(_OLD_MODE), bool):
            mode = "token-mean" if read.pop(_OLD_MODE) else "seq-mean-token-mean"
            read.setdefault("sft_loss_agg_mode", mode)
        return merge_arguments(
            self.signature,
            {**self.defaults, **declared, **read},
            function=self.name,
            key=f"algorithm.{self.part}_args",
            is_own=self.is_own,
        )


def find_part(part: Part, name: str) -> AlgorithmPart:
    """Returns the function with this name; `none` accepts and ignores the arguments of its kind.

    Raises: UserError when there is no such function, or its signature does not fit the part.
    """
    name = _in_its_case(part, name)
    if part in ("kl_penalty_fn", "kl_loss_fn"):
        return _divergence(part, name)
    if part == "sample_strategy":
        return _strategy(part, name)
    if part == "entropy_loss_fn" and name == "none":
        name_of_arguments = ENTROPY_LOSSES.builtins["default"]
        return AlgorithmPart(part=part, name=name, signature=read_signature(name_of_arguments))
    own = any(registry.is_own(name) for registry, _ in _OWN[part])
    for registry, form in () if own else _OWN[part]:
        if path := registry.builtins.get(name):
            signature = read_signature(path)
            return AlgorithmPart(part=part, name=name, signature=signature, form=form)
    return _own(part, name)


def _divergence(part: Part, name: str) -> AlgorithmPart:
    """An estimator, whose arguments are those of its coefficient."""
    signature = read_signature(KL_CONTROLLER)
    if name in DIVERGENCES.builtins:
        return AlgorithmPart(part=part, name=name, signature=signature)
    own = _adapted(part, name, DIVERGENCES)
    defaults = {key: value for key, value in own.defaults.items() if key in signature.arguments}
    name = DIVERGENCES.plan_name(name)
    return AlgorithmPart(part=part, name=name, signature=signature, defaults=defaults)


def _strategy(part: Part, name: str) -> AlgorithmPart:
    """Returns a built-in strategy; a user's class stands for a strategy with other arguments."""
    if path := SAMPLE_STRATEGIES.builtins.get(name):
        return AlgorithmPart(part=part, name=name, signature=read_signature(path))
    own = _adapted(part, name, SAMPLE_STRATEGIES)
    signature = read_signature(SAMPLE_STRATEGIES.path_of(own.stands_for))
    return AlgorithmPart(
        part=part, name=own.stands_for, signature=signature, defaults=dict(own.defaults)
    )


def _adapted(part: Part, name: str, registry: FunctionRegistry) -> AdaptedPart:
    """Loads a user's class for this kind of part.

    Raises: UserError when there is no such class, or it cannot be used.
    """
    load_plugins(plugin_dirs_from_environment())
    if not registry.is_own(name) and "." not in name:
        names = registry.names()
        raise UserError(f"`algorithm.{part}: {name}` is not supported{did_you_mean(name, names)}")
    found = registry.get(name)
    if not isinstance(found, AdaptedPart):
        raise UserError(
            f"`algorithm.{part}: {name}` is no class of such a part: docs/algorithms.md shows one"
        )
    return found


def _own(part: Part, name: str) -> AlgorithmPart:
    """Imports a user's function, so that its errors are found now and not in a service."""
    function, forms = _function(part, name)
    try:
        form, signature = matching_signature(function, forms)
    except UserError as error:
        raise UserError(f"`algorithm.{part}: {name}` {error}") from error
    return AlgorithmPart(
        part=part,
        name=_plan_name(part, name),
        signature=signature,
        form=form,
        is_own=True,
        reads_reference=isinstance(function, AdaptedPart) and function.needs_reference,
    )


def _plan_name(part: Part, name: str) -> str:
    own = (registry for registry, _ in _OWN[part] if registry.is_own(name))
    return next((registry.plan_name(name) for registry in own), name)


def _function(part: Part, name: str) -> tuple[object, tuple[RequiredSignature, ...]]:
    """The function with this name, and the call forms allowed for it."""
    own = _OWN[part]
    load_plugins(plugin_dirs_from_environment())
    for registry, form in own:
        if registry.is_own(name):
            return registry.get(name), (form,)
    if "." in name:
        return own[0][0].get(name), tuple(form for _, form in own)
    names = [known for registry, _ in own for known in registry.names()]
    raise UserError(
        f"`algorithm.{part}: {name}` is not supported{did_you_mean(name, names)} "
        "(a dotted path names a function of your own)"
    )


def resolve_algorithm(
    config: AlgorithmConfig,
    mode: Mode,
    rows: ExperienceBufferConfig | None = None,
) -> ResolvedAlgorithm:
    """Returns all parts with all their arguments; `rows` may be data, on which some can train.

    Raises: UserError naming each setting that cannot be used.
    """
    config = _in_their_case(config)
    declared = _type_of(config.algorithm_type, mode)
    if mode == "train" and rows is not None and rows.path and rows.source_run is None:
        declared = ON_ROWS.get(declared.name, declared)
    return _resolved(config, declared)


def _in_their_case(config: AlgorithmConfig) -> AlgorithmConfig:
    """Returns the settings with names of built-in parts as these are written."""
    load_plugins(plugin_dirs_from_environment())
    named = {key: getattr(config, key) for key in _REGISTRIES}
    return config.model_copy(
        update={key: _in_its_case(key, name) for key, name in named.items() if name is not None}
    )


def _in_its_case(key: str, name: str) -> str:
    """Returns the built-in name that differs in capitals alone, if no part has exactly this one."""
    if any(name in registry.names() for registry in _REGISTRIES[key]):
        return name
    built_in = (known for registry in _REGISTRIES[key] for known in registry.builtins)
    return {known.casefold(): known for known in built_in}.get(name.casefold(), name)


def _type_of(name: str, mode: Mode) -> AlgorithmType:
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
    errors = ErrorCollector()
    parts = errors.attempt(
        lambda: all_of([partial(_part, part, config, declared) for part in PARTS])
    )
    repeat_times = errors.attempt(lambda: _repeat_times(config, declared))
    errors.raise_all()
    assert parts and repeat_times
    _check_rollouts(config, config.policy_loss_fn or declared.policy_loss_fn)
    values: dict[str, object] = {}
    mode = config.loss_agg_mode or _agg_mode(config.policy_loss_fn, declared)
    for found, arguments in parts:
        own = _with_mode(found, arguments, mode) if found.part == "policy_loss_fn" else arguments
        values |= {found.part: found.name, f"{found.part}_args": own}
    advantage = next(found for found, _ in parts if found.part == "advantage_fn")
    has_rollouts = declared.schema == "experience"
    return ResolvedAlgorithm.model_validate(
        {
            **values,
            "algorithm_type": declared.name,
            "row_schema": declared.schema,
            "repeat_times": repeat_times,
            "advantage_in_trainer": advantage.form is TOKEN_ADVANTAGE,
            "loss_reads_reference": any(found.reads_reference for found, _ in parts),
            "loss_agg_mode": mode,
            "needs_critic": _needs_critic(advantage, declared),
            "can_balance_batch": declared.can_balance_batch,
            "bypass_old_logprobs": config.bypass_old_logprobs or not has_rollouts,
            "rollout_correction": config.rollout_correction.settings
            if has_rollouts
            else CorrectionSettings(),
        }
    )


def _check_rollouts(config: AlgorithmConfig, name: str) -> None:
    """A class of a loss may want both log-probabilities, of which the trainer gives it one."""
    if config.bypass_old_logprobs or not (POLICY_LOSSES.is_own(name) or "." in name):
        return
    loss: object = POLICY_LOSSES.get(name)
    if isinstance(loss, AdaptedPart) and loss.wants_rollouts:
        raise UserError(
            f"`algorithm.policy_loss_fn: {name}` wants `rollout_log_probs`, which the trainer "
            "replaces by its own with `bypass_old_logprobs: false`: leave that out, or weigh by "
            "`algorithm.rollout_correction`"
        )


def _part(
    part: Part, config: AlgorithmConfig, declared: AlgorithmType
) -> tuple[AlgorithmPart, Args]:
    """The user's choice or the type's; the type's arguments go with the type's choice only."""
    default: str = getattr(declared, part)
    is_ignored = declared.schema != "experience" and part in _OF_ROLLOUTS
    chosen: str | None = None if is_ignored else getattr(config, part)
    arguments: Args = {} if is_ignored else getattr(config, f"{part}_args")
    found = find_part(part, chosen or default)
    own = dict(declared.args.get(part, {})) if found.name == default else {}
    return found, found.arguments(own, arguments)


def _repeat_times(config: AlgorithmConfig, declared: AlgorithmType) -> int:
    times = config.repeat_times or 1
    if times < declared.min_repeat_times:
        raise UserError(
            f"{declared.name} compares the runs of one task, with "
            f"`algorithm.repeat_times: {times}` there are none: give "
            f"{declared.min_repeat_times} or more"
        )
    return times


def _agg_mode(chosen_loss: str | None, declared: AlgorithmType) -> str:
    """Returns the type's mode; losses other than the type's may have a different one."""
    if chosen_loss in (None, declared.policy_loss_fn):
        return declared.loss_agg_mode
    return AGG_MODES_OF_LOSSES.get(chosen_loss, declared.loss_agg_mode)


def _with_mode(loss: AlgorithmPart, arguments: Args, mode: str) -> Args:
    """A user's loss with an argument of this name gets the algorithm's mode, as in Trinity-RFT."""
    usual = loss.signature.defaults.get(MODE_ARGUMENT)
    takes_it = loss.is_own and MODE_ARGUMENT in loss.signature.arguments
    return {**arguments, MODE_ARGUMENT: mode} if takes_it and mode != usual else arguments


def _needs_critic(advantage: AlgorithmPart, declared: AlgorithmType) -> bool:
    """True if the advantage needs values; for a user's own advantage the type decides."""
    if advantage.is_own:
        return declared.needs_critic and advantage.form is TOKEN_ADVANTAGE
    return "values" in needs_of(advantage.name)
