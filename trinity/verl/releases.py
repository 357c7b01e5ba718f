"""veRL's defaults that affect training, release by release.

Read in veRL's repository: `verl/trainer/config` at each tag, and the code where a key had no line
there yet.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import yaml

from trinity.errors import UserError
from trinity.verl.values import FloatLoader, JsonValue, flat_values

Release = tuple[int, int]
RELEASES: tuple[Release, ...] = tuple((0, minor) for minor in range(1, 10))
NEWEST = RELEASES[-1]
_VERSION = re.compile(r"v?(\d+)\.(\d+)([.\w+-]*)")
NO_BOUND = 1e9
"""A `clip_ratio_c` that no ratio of a trained policy reaches."""

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
IN_REWARD = "algorithm.use_kl_in_reward"
KL_LOSS = f"{_ACTOR}.use_kl_loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A key with its default of each release."""

    key: str
    values: dict[Release, JsonValue]
    """Release from which on a value is the default."""
    effect: str = ""
    """For a default that changed: the effect on training."""
    date: str = ""
    """Day on which veRL's main branch changed, between two releases."""
    unread: tuple[Release, Release] | None = None
    """First and last release in which no code reads the key, so that the first value acts."""
    file: str = ""
    """The file below `verl` that reads it; empty if any may."""
    is_fsdp: bool = False
    """True if other back ends always read it."""

    @property
    def newest(self) -> JsonValue:
        """Today's value."""
        return self.at(NEWEST)

    def at(self, release: Release) -> JsonValue:
        """The value of a release."""
        return self.values[max(since for since in self.values if since <= release)]

    def is_unread(self, release: Release) -> bool:
        """True if no code of the release reads the key."""
        return self.unread is not None and self.unread[0] <= release <= self.unread[1]


_UNTIL_03 = ((0, 1), (0, 3))
CHANGED: tuple[Default, ...] = (
    Default(
        key=IN_REWARD,
        values={(0, 1): True, (0, 4): False},
        effect="the KL penalty is part of the reward unless `use_kl_loss` is given",
        date="1 April 2025",
        unread=_UNTIL_03,
        file="trainer/ppo/ray_trainer.py",
    ),
    Default(
        key=f"{_ACTOR}.entropy_coeff",
        values={(0, 1): 0.001, (0, 4): 0},
        effect="an entropy bonus",
        date="17 April 2025",
    ),
    Default(
        key=f"{_ACTOR}.clip_ratio_c",
        values={(0, 1): NO_BOUND, (0, 4): 3.0},
        effect="no second bound for negative advantages (dual clip)",
        date="2 April 2025",
        unread=_UNTIL_03,
    ),
    *(
        Default(
            key=f"{_ACTOR}.{name}",
            values={(0, 1): None, (0, 4): 0.2},
            effect="`clip_ratio` acts, later only where this is null",
            date="4 April 2025",
            unread=_UNTIL_03,
        )
        for name in ("clip_ratio_low", "clip_ratio_high")
    ),
    Default(
        key="data.filter_overlong_prompts",
        values={(0, 1): True, (0, 3): False},
        effect="prompts that are too long are left out, later they end the run",
        date="7 March 2025",
        unread=((0, 1), (0, 2)),
    ),
    Default(
        key="trainer.test_freq", values={(0, 1): 2, (0, 2): -1}, effect="steps between evaluations"
    ),
    *(
        Default(
            key=f"{section}.ppo_epochs",
            values={(0, 1): 1},
            effect="with FSDP one pass, whatever is given",
            date="25 February 2025",
            unread=((0, 2), (0, 2)),
            file=file,
            is_fsdp=True,
        )
        for section, file in (
            (_ACTOR, "workers/actor/dp_actor.py"),
            ("critic", "workers/critic/dp_critic.py"),
        )
    ),
    *(
        Default(
            key=f"{section}.optim.warmup_style",
            values={(0, 1): "constant"},
            effect="with FSDP the rate stays constant, whatever is given",
            date="8 April 2025",
            unread=_UNTIL_03,
            file="workers/fsdp_workers.py",
            is_fsdp=True,
        )
        for section in (_ACTOR, "critic")
    ),
)
"""Defaults that are others in some release, and keys that some release does not read."""

_KEPT = """
algorithm:
  {adv_estimator: gae, gamma: 1.0, lam: 1.0, norm_adv_by_std_in_grpo: true, use_pf_ppo: false,
   kl_penalty: kl, kl_ctrl: {type: fixed, kl_coef: 0.001, horizon: 10000, target_kl: 0.1},
   filter_groups: {enable: false},
   rollout_correction: {bypass_mode: false, rollout_is: null, rollout_rs: null}}
actor_rollout_ref:
  model: {lora_rank: 0}
  actor:
    {use_kl_loss: false, kl_loss_coef: 0.001, kl_loss_type: low_var_kl, clip_ratio: 0.2,
     loss_agg_mode: token-mean, use_token_level_loss: null, loss_scale_factor: null,
     policy_loss: {loss_mode: vanilla},
     ppo_mini_batch_size: 256, grad_clip: 1.0,
     optim: {lr: 1e-6, weight_decay: 0.01, betas: [0.9, 0.999], lr_warmup_steps: -1,
             lr_warmup_steps_ratio: 0.0, min_lr_ratio: 0.0, lr_scheduler_type: constant}}
  rollout:
    {n: 1, temperature: 1.0, top_p: 1.0, top_k: -1,
     val_kwargs: {n: 1, temperature: 0, top_p: 1.0, top_k: -1},
     n_val: null, val_temperature: null, val_top_p: null}
critic:
  {optim: {lr: 1e-5, weight_decay: 0.01, lr_warmup_steps_ratio: 0.0}, grad_clip: 1.0,
   cliprange_value: 0.5}
data:
  {prompt_key: prompt, max_prompt_length: 512, max_response_length: 512, train_batch_size: 1024,
   shuffle: true, truncation: error}
custom_reward_function: {path: null}
reward_model: {enable: false, reward_manager: naive}
trainer:
  {total_epochs: 30, total_training_steps: null, save_freq: -1, critic_warmup: 0,
   val_before_train: true, val_only: false}
"""
"""Defaults that no release has changed, of keys that affect training; `n_val`,
`val_temperature` and `val_top_p` are those of projects on veRL."""
_SUPERVISED = """
optim:
  {lr: 1e-5, betas: [0.9, 0.95], weight_decay: 0.01, clip_grad: 1.0, lr_scheduler: cosine,
   warmup_steps_ratio: 0.1, lr_warmup_steps_ratio: 0.1}
data:
  {train_batch_size: 256, max_length: 1024, multiturn: {enable: false}, prompt_key: question,
   response_key: answer, prompt_dict_keys: null, response_dict_keys: null}
trainer: {total_epochs: 4}
model: {lora_rank: 0}
"""
"""The same of `fsdp_sft_trainer`."""

_FIRST_READ: dict[str, Release] = {
    **{
        row.key: (row.unread[1][0], row.unread[1][1] + 1)
        for row in CHANGED
        if row.unread and not row.is_fsdp
    },
    f"{_ROLLOUT}.val_kwargs.n": (0, 3),
    f"{_ROLLOUT}.val_kwargs.temperature": (0, 3),
    "custom_reward_function.path": (0, 3),
    f"{_ACTOR}.loss_agg_mode": (0, 4),
    "algorithm.norm_adv_by_std_in_grpo": (0, 4),
    f"{_ROLLOUT}.mode": (0, 4),
    f"{_ACTOR}.policy_loss.loss_mode": (0, 4),
    f"{_ACTOR}.optim.lr_scheduler_type": (0, 6),
    "algorithm.rollout_correction.rollout_is": (0, 6),
}
"""Keys that no earlier release takes."""


@cache
def kept_defaults(*, supervised: bool = False) -> tuple[Default, ...]:
    """The defaults that no release has changed."""
    tree = yaml.load(_SUPERVISED if supervised else _KEPT, Loader=FloatLoader)  # a SafeLoader
    return tuple(Default(key=key, values={RELEASES[0]: value}) for key, value in flat_values(tree))


def parse_release(text: str) -> Release:
    """`0.3.0.post1` and `v0.3` are (0, 3).

    Raises: UserError if veRL has no such release.
    """
    found = _VERSION.fullmatch(text.strip())
    if found is None or not RELEASES[0] <= (int(found[1]), int(found[2])):
        raise UserError(
            f"veRL has no version {text}: give one from {name_of(RELEASES[0])} to "
            f"{name_of(NEWEST)}, as in --verl-version 0.2"
        )
    return int(found[1]), int(found[2])


def name_of(release: Release) -> str:
    """(0, 3) is `0.3`."""
    return f"{release[0]}.{release[1]}"


def oldest_with(keys: set[str]) -> Release:
    """The oldest release that takes all of the keys."""
    return max((_FIRST_READ[key] for key in keys if key in _FIRST_READ), default=RELEASES[0])


def release_table() -> str:
    """The defaults that changed, as Markdown."""
    lines = ["| key | releases | default | so that | changed |", "| --- | --- | --- | --- | --- |"]
    lines += [line for row in CHANGED for line in _lines(row)]
    return "\n".join(lines)


def _lines(row: Default) -> Iterator[str]:
    if len(row.values) == 1:
        assert row.unread is not None
        yield f"| `{row.key}` | {_span(*row.unread)} | not read | {row.effect} | {row.date} |"
        return
    starts = [*row.values]
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        last = NEWEST if following is None else (following[0], following[1] - 1)
        shown = "no bound" if row.values[start] == NO_BOUND else _shown(row.values[start])
        effect, date = (row.effect, row.date) if start == starts[0] else ("", "")
        yield f"| `{row.key}` | {_span(start, last)} | {shown} | {effect} | {date} |"


def _span(first: Release, last: Release) -> str:
    return name_of(first) if first == last else f"{name_of(first)} to {name_of(last)}"


def _shown(value: JsonValue) -> str:
    return "`null`" if value is None else f"`{value}`"
