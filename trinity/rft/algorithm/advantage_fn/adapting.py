"""Calls advantages of Trinity-RFT, and exposes the built-in ones as Trinity-RFT's classes.

Trinity-RFT calls them on experiences in the buffer, or on a batch in the trainer.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.needs import Needs, needs, needs_of
from trinity.algorithm.advantage.samples import Advantages, Samples
from trinity.algorithm.signature import words_in
from trinity.algorithm.token_advantage import NEEDS_OF_CLASSES, TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import FloatMatrix, TokenAdvantages, TokenBatch
from trinity.algorithm.units import SAMPLE_UNIT, UNIT_ARGUMENT
from trinity.errors import UserError
from trinity.rft.algorithm.advantage_fn import AdvantageFn, GroupAdvantage
from trinity.rft.buffer.experiences import (
    ReturnedExperiences,
    experiences_of,
    group_metrics,
    ordered,
    samples_of,
)
from trinity.user_code.adapted_part import AdaptedPart, overrides, set_attributes

WHOLE_STEP = Needs(whole_step=True, content=True)
COLUMNS = (
    "token_level_rewards",
    "token_level_scores",
    "response_mask",
    "old_log_probs",
    "rollout_log_probs",
    "values",
    "entropys",
    "teacher_logprobs",
    "reward_baselines",
)
"""Tensors of a batch, by verl's names, as far as the algorithm has them."""


_THEIR_DEFAULTS: Mapping[str, Any] = {UNIT_ARGUMENT: SAMPLE_UNIT, "anchors": "all"}
"""Values by which Trinity-RFT's classes differ from our functions."""


class AdaptedGroupAdvantage(AdaptedPart):
    """A class of an advantage of experiences as a group advantage."""

    input_type = "Samples"
    return_type = "Advantages"

    def __call__(self, samples: Samples, /, **arguments: Any) -> Advantages:
        """Returns the advantages that the class gives to experiences."""
        exps = experiences_of(samples)
        kept, metrics = self.instance(arguments)(list(exps))
        outcome = ReturnedExperiences.of(exps, kept)
        values_N = np.zeros(len(exps))
        for number, exp in outcome.returned.items():
            values_N[number] = exp.advantage
        return Advantages(
            values_N,
            left_out=outcome.left_out,
            reason=f"{self.__name__} dropped it",
            copies_of=outcome.copies_of(),
            metrics=group_metrics(metrics or {}, samples.num_groups),
        )


class AdaptedTokenAdvantage(AdaptedPart):
    """A class of an advantage of the trainer's batch as a token advantage."""

    input_type = "TokenBatch"
    return_type = "TokenAdvantages"

    def __call__(self, batch: TokenBatch, /, **arguments: Any) -> TokenAdvantages:
        """Returns the advantages that the class writes into a batch."""
        data = TokenData.of(batch)
        answer, metrics = self.instance(arguments)(data)
        if "advantages" not in answer.batch:
            raise UserError(f"{self.__name__} wrote no `advantages` into the batch")
        returns = answer.batch.get("returns")
        return TokenAdvantages(
            advantages_BT=_matrix(answer.batch["advantages"], batch),
            returns_BT=None if returns is None else _matrix(returns, batch),
            metrics={name: float(value) for name, value in (metrics or {}).items()},
        )


def _matrix(tensor: Any, batch: TokenBatch) -> FloatMatrix:
    values_BT = np.asarray(tensor.detach().cpu(), dtype=np.float64)
    return np.where(batch.mask_BT, values_BT, 0.0)


class _Columns(dict[str, Any]):
    """Tensors by name; the error for a missing one lists the others."""

    def __missing__(self, name: str) -> Any:
        raise UserError(
            f"the batch has no `{name}` for this algorithm: it has {', '.join(self)}; of "
            f"{', '.join(COLUMNS)} it has those that the algorithm computes"
        )


@dataclass(slots=True)
class TokenData:
    """A batch as verl's DataProto holds it: tensors, arrays and settings by name."""

    batch: dict[str, Any]
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, batch: TokenBatch) -> "TokenData":
        """Returns the batch's arrays as tensors."""
        import torch  # the classes import it, too

        columns = {
            "token_level_rewards": batch.rewards_BT,
            "token_level_scores": batch.rewards_BT,
            "old_log_probs": batch.logprobs_BT,
            "rollout_log_probs": batch.rollout_logprobs_BT,
            "values": batch.values_BT,
            "entropys": batch.entropies_BT,
            "teacher_logprobs": batch.teacher_logprobs_BT,
            "reward_baselines": batch.baselines_B,
        }
        tensors = {
            name: torch.tensor(values, dtype=torch.float32)
            for name, values in columns.items()
            if values is not None
        }
        return cls(
            batch=_Columns(response_mask=torch.tensor(batch.mask_BT), **tensors),
            non_tensor_batch={"uid": np.array([str(group) for group in batch.groups_B])},
        )

    def __len__(self) -> int:
        return len(self.batch["response_mask"])


def adapt_advantage(name: str, source: type) -> AdaptedPart | type:
    """Returns the class as a part; one that is no advantage stays as it is.

    Raises: UserError when it is asynchronous.
    """
    if not issubclass(source, AdvantageFn):
        return source
    if source.compute_in_trainer():
        if "entropys" in words_in(source):
            NEEDS_OF_CLASSES[name] = frozenset({"entropies"})
        return AdaptedTokenAdvantage(source)
    if inspect.iscoroutinefunction(source.__call__):
        raise UserError(f"`__call__` of {source.__name__} is asynchronous: write it without async")
    adapted = AdaptedGroupAdvantage(source)
    needs(WHOLE_STEP)(adapted)
    return adapted


class _BuiltInGroupAdvantage(GroupAdvantage):
    """A built-in advantage that is computed on experiences."""

    function_name: str

    def __init__(self, /, **arguments: Any) -> None:
        known = self.default_args()
        self.__arguments = _with_unit(known, arguments)
        set_attributes(self, {**known, **arguments})

    def group_experiences(self, exps: list[Any]) -> dict[str, list[Any]]:
        """Returns the experiences by task."""
        groups: dict[str, list[Any]] = {}
        for exp in exps:
            groups.setdefault(exp.eid.tid, []).append(exp)
        return groups

    def process(self, exps: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Computes all groups at once, unless a subclass has its own way for a group."""
        is_own = any(
            overrides(type(self), method, _BuiltInGroupAdvantage)
            for method in ("group_experiences", "calculate_group_advantage")
        )
        return super().process(exps) if is_own else self.calculate_group_advantage("", exps)

    def calculate_group_advantage(
        self, group_id: str, exps: list[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Sets the advantages of a group; drops experiences that the function leaves out."""
        del group_id
        exps = ordered(exps)
        function = ADVANTAGES.built_in(type(self).function_name)
        reads_logprobs = needs_of(function, self.__arguments).mean_logprobs
        samples = samples_of(exps, with_logprobs=reads_logprobs)
        found = function(samples, **self.__arguments)
        for exp, value in zip(exps, found.values, strict=True):
            exp.advantages = float(value) * exp.action_mask
            exp.returns = exp.advantages.clone()
        left_out = np.zeros(len(exps), np.bool_) if found.left_out is None else found.left_out
        kept = [exp for exp, is_out in zip(exps, left_out, strict=True) if not is_out]
        metrics = {name.rpartition("/")[2]: float(np.mean(v)) for name, v in found.metrics.items()}
        return kept, {**metrics, "filtered_count": int(left_out.sum())}

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the function's own values; Trinity-RFT's baselines count samples."""
        return _defaults(ADVANTAGES.built_in(cls.function_name))


class _BuiltInTokenAdvantage(AdvantageFn):
    """A built-in advantage that is computed on a trainer's batch."""

    function_name: str

    def __init__(self, /, **arguments: Any) -> None:
        known = self.default_args()
        self.__arguments = _with_unit(known, arguments)
        set_attributes(self, {**known, **arguments})

    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Writes `advantages` and `returns` into the batch."""
        del kwargs
        found = TOKEN_ADVANTAGES.built_in(type(self).function_name)(
            _batch_of(exps), **self.__arguments
        )
        like = exps.batch["token_level_rewards"]
        returns = found.advantages_BT if found.returns_BT is None else found.returns_BT
        exps.batch["advantages"] = like.new_tensor(found.advantages_BT)
        exps.batch["returns"] = like.new_tensor(returns)
        return exps, dict(found.metrics)

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        """Returns the function's own values."""
        return _defaults(TOKEN_ADVANTAGES.built_in(cls.function_name))


def _batch_of(exps: Any) -> TokenBatch:
    columns: Mapping[str, Any] = exps.batch

    def column(name: str) -> Any:
        return columns[name].detach().cpu().double().numpy() if name in columns else None

    mask_BT = np.asarray(columns["response_mask"].bool().cpu())
    logprobs_BT = column("old_log_probs")
    if logprobs_BT is None:
        logprobs_BT = np.zeros(mask_BT.shape)
    uids = exps.non_tensor_batch.get("uid", np.arange(len(mask_BT)))
    _, groups_B = np.unique(uids, return_inverse=True)
    rollout_BT = column("rollout_log_probs")
    return TokenBatch(
        rewards_BT=column("token_level_rewards"),
        mask_BT=mask_BT,
        lengths_B=(np.arange(1, mask_BT.shape[-1] + 1) * mask_BT).max(-1).astype(np.int64),
        groups_B=groups_B.astype(np.int64),
        logprobs_BT=logprobs_BT,
        rollout_logprobs_BT=logprobs_BT if rollout_BT is None else rollout_BT,
        values_BT=column("values"),
        entropies_BT=column("entropys"),
        teacher_logprobs_BT=column("teacher_logprobs"),
        baselines_B=column("reward_baselines"),
    )


def _with_unit(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments that the function takes, with the unit of this class."""
    return {
        name: value
        for name, value in {UNIT_ARGUMENT: known.get(UNIT_ARGUMENT), **given}.items()
        if name in known
    }


def _defaults(function: Any) -> dict[str, Any]:
    known = inspect.signature(function).parameters.values()
    defaults = {p.name: p.default for p in known if p.kind is p.KEYWORD_ONLY}
    theirs = {name: value for name, value in _THEIR_DEFAULTS.items() if name in defaults}
    return {**defaults, **theirs}


@lru_cache
def group_class(name: str, function: str) -> type[AdvantageFn]:
    """Returns the class of a built-in advantage of groups."""
    return _class(name, function, _BuiltInGroupAdvantage)


@lru_cache
def token_class(name: str, function: str) -> type[AdvantageFn]:
    """Returns the class of a built-in advantage of tokens."""
    return _class(name, function, _BuiltInTokenAdvantage)


def _class(name: str, function: str, base: type[AdvantageFn]) -> type[AdvantageFn]:
    doc = f"The advantage `{function}` as a class of Trinity-RFT."
    namespace = {"function_name": function, "__doc__": doc, "__module__": AdvantageFn.__module__}
    made = type(name, (base,), namespace)
    assert issubclass(made, AdvantageFn)
    return made
