"""Resolves a replay buffer: its priority function, with the arguments checked."""

import math

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.signature import Signature, read_signature, signature_of
from trinity.config.error_collector import did_you_mean
from trinity.config.plan.algorithm import merge_arguments
from trinity.config.plan.parts import ResolvedReplay
from trinity.config.schema.base import Args
from trinity.config.schema.data import COOLDOWN_UNITS, ExperienceBufferConfig
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment

FORM = (
    "`def name(candidate: Candidate, *, your_argument: float = 1.0) -> float | None` (type of "
    "trinity.algorithm.priority.candidate)"
)


def resolve_replay(given: ExperienceBufferConfig, key: str) -> ResolvedReplay | None:
    """Returns the replay buffer; None if it is off.

    Raises: UserError naming the setting that cannot be used.
    """
    replay = given.replay_buffer
    if not replay.enable:
        return None
    name, arguments = _function(given, key)
    load_plugins(plugin_dirs_from_environment())
    try:
        signature = _signature(name)
        complete = merge_arguments(
            signature,
            arguments,
            function=name,
            key="priority_fn_args",
            is_own=name not in PRIORITIES.builtins,
        )
    except UserError as error:
        raise UserError(f"{key}.replay_buffer`: {error}") from error
    steps, seconds = _cooldown(replay.reuse_cooldown_time)
    return ResolvedReplay(
        priority_fn=PRIORITIES.plan_name(name),
        priority_fn_args=complete,
        cooldown_steps=steps,
        cooldown_seconds=seconds,
        capacity=given.capacity,
        when_full=replay.when_full,
    )


def _cooldown(time: float | str | None) -> tuple[int | None, float]:
    """Returns the train steps and the seconds between two uses; no steps are never."""
    match time:
        case None:
            return None, 0.0
        case str():
            return 1, float(time[:-1]) * COOLDOWN_UNITS[time[-1]]
        case _:
            return max(1, math.ceil(time)), 0.0


def check_capacity(replay: ResolvedReplay | None, num_rollout_rows: int) -> None:
    """Raises UserError if a buffer cannot hold the rollouts of one batch."""
    if replay is not None and replay.capacity < num_rollout_rows:
        raise UserError(
            f"`buffer.trainer_input.experience_buffer.capacity: "
            f"{replay.capacity}` is less than the {num_rollout_rows} rollouts of a batch: raise it"
        )


def _function(given: ExperienceBufferConfig, key: str) -> tuple[str, Args]:
    """The function and the user's arguments for it, under the newer or the older names."""
    replay, old = given.replay_buffer, dict(given.replay_buffer_kwargs)
    name = old.pop("priority_fn", replay.priority_fn)
    if not isinstance(name, str):
        raise UserError(f"{key}.replay_buffer_kwargs.priority_fn` must be a name, not {name!r}")
    own = replay.priority_fn_args if "priority_fn_args" in replay.model_fields_set else {}
    return name, {**own, **old}


def _signature(name: str) -> Signature:
    if path := PRIORITIES.builtins.get(name):
        return read_signature(path)
    if name not in PRIORITIES.names() and "." not in name:
        raise UserError(
            f"`priority_fn: {name}` is not supported{did_you_mean(name, PRIORITIES.names())}, "
            "or give a dotted path"
        )
    function = PRIORITIES.get(name)
    if not callable(function) or isinstance(function, type):
        raise UserError(f"`priority_fn: {name}` is not a function: write {FORM}")
    signature = signature_of(function)
    if signature.input_type is None:
        raise UserError(f"`priority_fn: {name}` takes nothing by place: write {FORM}")
    return signature
