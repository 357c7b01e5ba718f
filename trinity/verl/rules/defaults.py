"""Writes out veRL's defaults where ours differ, or where a later release could make them differ."""

from trinity.verl.rules.algorithm import convert_old_logprobs
from trinity.verl.rules.losses import AGG_MODE
from trinity.verl.shell.variables import UNKNOWN
from trinity.verl.values import JsonValue
from trinity.verl.work import ACTOR, Conversion

_BETAS: JsonValue = [0.9, 0.999]
_Default = tuple[str, str, JsonValue]
"""veRL's key, ours, and veRL's default."""
_MODEL = "actor_rollout_ref.model"
_ACTOR_DEFAULTS: tuple[_Default, ...] = (
    (f"{ACTOR}.optim.lr", "algorithm.optimizer.lr", 1e-6),
    (f"{ACTOR}.optim.betas", "algorithm.optimizer.betas", _BETAS),
    (f"{ACTOR}.optim.weight_decay", "algorithm.optimizer.weight_decay", 0.01),
    (f"{ACTOR}.optim.clip_grad", "trainer.grad_clip", 1.0),
    (f"{_MODEL}.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing", True),
    (f"{_MODEL}.use_remove_padding", "trainer.use_remove_padding", True),
)
_CRITIC = "trainer.critic"
_CRITIC_DEFAULTS: tuple[_Default, ...] = (
    ("critic.optim.lr", f"{_CRITIC}.optimizer.lr", 1e-5),
    ("critic.optim.betas", f"{_CRITIC}.optimizer.betas", _BETAS),
    ("critic.optim.weight_decay", f"{_CRITIC}.optimizer.weight_decay", 0.01),
    ("critic.optim.clip_grad", f"{_CRITIC}.grad_clip", 1.0),
    ("critic.cliprange_value", f"{_CRITIC}.cliprange_value", 0.5),
    (
        "critic.model.enable_gradient_checkpointing",
        f"{_CRITIC}.enable_gradient_checkpointing",
        True,
    ),
)
_SFT_DEFAULTS: tuple[_Default, ...] = (
    ("optim.betas", "algorithm.optimizer.betas", _BETAS),
    ("optim.weight_decay", "algorithm.optimizer.weight_decay", 0.01),
    ("optim.clip_grad", "trainer.grad_clip", 1.0),
    ("model.enable_gradient_checkpointing", "trainer.enable_gradient_checkpointing", True),
    ("model.use_remove_padding", "trainer.use_remove_padding", True),
)


def convert_defaults(work: Conversion) -> None:
    """Writes the defaults of keys that nothing has set, after all keys that are set."""
    if work.settings.is_supervised:
        _put_all(work, _SFT_DEFAULTS)
        return
    convert_old_logprobs(work)
    _put_all(work, _ACTOR_DEFAULTS)
    if work.has_critic:
        _put_all(work, _CRITIC_DEFAULTS)
        mode = f"{ACTOR}.loss_agg_mode"
        given = work.settings.peek(mode) or AGG_MODE
        _put_all(work, (("critic.loss_agg_mode", f"{_CRITIC}.loss_agg_mode", given),))


def _put_all(work: Conversion, defaults: tuple[_Default, ...]) -> None:
    for verl, ours, value in defaults:
        if work.draft.get(ours) is None and work.settings.peek(verl) != UNKNOWN:
            work.put(ours, value, f"veRL's default of {verl}")
