"""Samples as the experiences that operators and advantages of Trinity-RFT take, and back.

exps = experiences_of(rollouts)
kept, metrics = operator.process(exps)
outcome = ReturnedExperiences.of(exps, kept)  # which were left out, and which were copied

An experience has its texts, reward, info, metrics and lengths; everything else that was recorded of
it, such as tokens, masks and log-probabilities, is loaded when it is first read.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trinity import types
from trinity.algorithm.advantage.samples import BoolVector, FloatVector, IntVector, Samples
from trinity.errors import UserError
from trinity.operators.rollouts import Content, Rollouts

NO_CONTENT = Content(prompt_text="", response_text="", info={}, metrics={})
RECORDED = frozenset({"tokens", "logprobs", "prompt_length", "teacher_logprobs", "messages"})
"""Fields of Trinity-RFT's experience that operators may read and cannot change."""
_STATUS = {"length": "response_truncated", "prompt_truncated": "prompt_truncated"}
UNSET = frozenset(
    {"token_level_reward", "chosen", "rejected", "multi_modal_inputs", "routed_experts", "tools"}
)
"""Fields that experiences of rollouts do not have; setting one would have no effect."""


class FieldNotSet(UserError, AttributeError):
    """A field of Trinity-RFT's experience that cannot be set."""


class OperatedExperience:
    """One sample; users' code may change its reward, mask, info, metrics and advantages.

    `record` returns all that was recorded of it, and raises UserError if no buffer did.
    """

    def __init__(
        self,
        eid: types.EID,
        reward: float | None,
        content: Content,
        record: Callable[[], types.Experience],
    ) -> None:
        self._record = record
        self._whole: Any = None
        self.eid = eid
        self.number = int(eid.suffix)
        self.reward = reward
        self.info: dict[str, Any] = dict(content.info)
        self.metrics: dict[str, float] = dict(content.metrics)
        self.prompt_text = content.prompt_text
        self.response_text = content.response_text
        self.truncate_status = _STATUS.get(content.finish_reason)
        self.response_length = 1
        self.advantages: Any = None
        self.returns: Any = None
        self._action_mask: Any = None

    @property
    def action_mask(self) -> Any:
        """A bool tensor, true for each token after the prompt that the policy chose, until someone
        replaces it.
        """
        if self._action_mask is None:
            import torch  # only for those who use it

            self._action_mask = torch.tensor(self._recorded_mask())
        return self._action_mask

    @action_mask.setter
    def action_mask(self, mask: Any) -> None:
        self._action_mask = mask

    @property
    def is_masked(self) -> bool:
        """True if someone has masked all of its tokens.

        Raises: UserError for some of them.
        """
        if self._action_mask is None:
            return False
        mask = np.asarray(self._action_mask, dtype=np.bool_).reshape(-1)
        if np.array_equal(mask, self._recorded_mask()) or mask.all():
            return False
        if mask.any():
            raise UserError(
                "`action_mask` of an experience was false for some of its tokens: operators and "
                "advantages of groups mask all tokens of a sample or none"
            )
        return True

    def _recorded_mask(self) -> BoolVector:
        """True for the tokens that the policy chose; for all if no buffer recorded the sample."""
        try:
            body = self._record().body
        except UserError:
            return np.ones(max(self.response_length, 1), dtype=np.bool_)
        return (body.chosen if isinstance(body, types.Pair) else body).action_mask

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses fields that are never read; others may be added."""
        if name in RECORDED or name in UNSET:
            raise FieldNotSet(
                f"`{name}` of an experience was set by an operator or a group advantage, which "
                "changes nothing: change `reward`, `info`, `action_mask` or `advantages`"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        """Returns another field of Trinity-RFT's experience, as it was recorded."""
        if name in UNSET:
            return None
        known = {"custom_fields", *dir(types.Experience), *types.Experience.__dataclass_fields__}
        if name.startswith("_") or name not in known:
            raise AttributeError(f"an experience has no `{name}`")
        if self._whole is None:
            self._whole = self._record().copied()
        return getattr(self._whole, name)

    @property
    def advantage(self) -> float:
        """The advantage, one number for all tokens.

        Raises: UserError when it is missing, tokens differ, or some are masked.
        """
        if self.advantages is None:
            raise UserError("an experience was returned without `advantages`: set them, or drop it")
        if self.is_masked:
            return 0.0
        values = np.asarray(self.advantages, dtype=np.float64).reshape(-1)
        if len(values) and np.ptp(values) and len(values) == len(self._recorded_mask()):
            values = values[self._recorded_mask()]  # other tokens are not trained on
        if not len(values):
            return 0.0
        if np.ptp(values) > 1e-6 * max(1.0, float(np.abs(values).max())):
            raise UserError(
                "`advantages` differ between the tokens of a sample: an advantage of groups is one "
                "number a sample; define `compute_in_trainer` as true for one of tokens"
            )
        return float(values[0])


def experiences_of(samples: Samples) -> list[OperatedExperience]:
    """Returns an experience for each sample, in their order."""
    rollouts = samples if isinstance(samples, Rollouts) else Rollouts.of(samples)
    contents = rollouts.contents or [NO_CONTENT] * len(rollouts.rewards)
    return [_experience(rollouts, i, content) for i, content in enumerate(contents)]


def _experience(rollouts: Rollouts, i: int, content: Content) -> OperatedExperience:
    task = int(rollouts.groups[i])
    eid = types.EID(0, task, int(rollouts.runs[i]), int(rollouts.steps[i]), str(i))
    reward = float(rollouts.rewards[i]) if rollouts.has_reward[i] else None
    read = rollouts.experience
    experience = OperatedExperience(eid, reward, copy.deepcopy(content), lambda: read(i))
    experience.response_length = int(rollouts.response_lengths[i])
    experience.info.setdefault("task_index", {"taskset_id": 0, "index": task})
    for name, values_N in rollouts.numbers.items():
        if not np.isnan(values_N[i]):
            experience.info[name] = float(values_N[i])
    if rollouts.is_truncated[i]:
        experience.truncate_status = "response_truncated"
    return experience


def ordered(exps: Iterable[Any]) -> list[Any]:
    """Returns experiences by task, run and step; tasks keep the order in which they come."""
    tasks: dict[str, list[Any]] = {}
    for exp in exps:
        tasks.setdefault(exp.eid.tid, []).append(exp)
    in_runs = (sorted(own, key=lambda exp: (exp.eid.run, exp.eid.step)) for own in tasks.values())
    return [exp for own in in_runs for exp in own]


def samples_of(exps: Sequence[Any], *, with_logprobs: bool = False) -> Samples:
    """Returns ordered experiences as samples, for calls of our functions by users' code."""
    groups = _numbered(exp.eid.tid for exp in exps)
    size = len(exps)
    logprobs = [float(exp.logprobs.mean()) if with_logprobs else np.nan for exp in exps]
    rewards = [0.0 if exp.reward is None else exp.reward for exp in exps]
    return Samples(
        rewards=np.array(rewards, dtype=np.float64),
        groups=groups,
        runs=np.array([int(exp.eid.run) for exp in exps], dtype=np.int64),
        steps=np.array([int(exp.eid.step) for exp in exps], dtype=np.int64),
        lots=np.random.default_rng(0).random(size),
        mean_logprobs=np.array(logprobs, dtype=np.float64),
        step_rewards=np.array(
            [exp.info.get("step_reward", np.nan) for exp in exps], dtype=np.float64
        ),
        states=_numbered(str(exp.info.get("env_state_hash", i)) for i, exp in enumerate(exps)),
    )


def _numbered(texts: Iterable[str]) -> IntVector:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedExperiences:
    """The returned experiences, by the samples that they came from."""

    returned: Mapping[int, Any]
    """By the sample's number; others were dropped."""
    copies: Sequence[int] = field(default_factory=tuple)
    """Samples that were returned once more, in their order."""
    size: int = 0

    @classmethod
    def of(cls, exps: Sequence[OperatedExperience], kept: object) -> "ReturnedExperiences":
        """Finds each returned experience among those that were given.

        Raises: UserError when the answer is no list, or has an experience that was not given.
        """
        if not isinstance(kept, list | tuple):
            raise UserError(f"it returned {type(kept).__name__} where a list is expected")
        returned: dict[int, Any] = {}
        copies: list[int] = []
        for exp in kept:
            number = exp.number if isinstance(exp, OperatedExperience) else None
            if number is None:
                raise UserError(
                    "it returned an experience that it was not given: what a batch holds comes "
                    "from rollouts; make new ones in the workflow"
                )
            if number in returned:
                copies.append(number)
            returned.setdefault(number, exp)
        return cls(returned=returned, copies=copies, size=len(exps))

    @property
    def left_out(self) -> BoolVector:
        """True where a sample was dropped, [N]."""
        left_out_N = np.ones(self.size, dtype=np.bool_)
        left_out_N[list(self.returned)] = False
        return left_out_N

    def copies_of(self) -> IntVector | None:
        """Gives each copy the place of a dropped sample, [N]; None without copies.

        Raises: UserError for more copies than dropped samples.
        """
        if not self.copies:
            return None
        places = np.flatnonzero(self.left_out)
        if len(self.copies) > len(places):
            raise UserError(
                f"it returned {len(self.copies)} copies where {len(places)} samples were dropped: "
                "a copy stands in for a dropped sample"
            )
        copies_N = np.full(self.size, -1, dtype=np.int64)
        copies_N[places[: len(self.copies)]] = self.copies
        return copies_N


def group_metrics(metrics: Mapping[str, Any], num_groups: int) -> dict[str, FloatVector]:
    """Returns metrics of a whole step as metrics of its groups, [G], which add up to the same.

    What is no number, as the feedback to a selector, is left out: selectors get all rewards.
    """
    numbers = {name: _number(value) for name, value in metrics.items()}
    spread: dict[str, FloatVector] = {}
    for name, value in numbers.items():
        if value is None or not num_groups:
            continue
        spread[name] = np.full(num_groups, value, dtype=np.float64)
        if name.endswith("_count"):
            spread[name][1:] = 0.0
    return spread


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if np.isfinite(number) else None
