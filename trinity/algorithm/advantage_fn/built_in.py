"""Trinity-RFT's own advantages as classes, around the functions here, for users' classes."""

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from trinity.algorithm.adapted_part import overrides
from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage_fn import AdvantageFn, GroupAdvantage
from trinity.algorithm.token_advantage import TOKEN_ADVANTAGES
from trinity.algorithm.token_advantage.token_batch import TokenBatch
from trinity.algorithm.units import UNIT_ARGUMENT, UNIT_BEFORE
from trinity.buffer.experiences import ordered, samples_of


class _BuiltInGroupAdvantage(GroupAdvantage):
    """An advantage of ours, of experiences."""

    function_name: str

    def __init__(self, **arguments: Any) -> None:
        known = self.default_args()
        self.arguments = _with_unit(known, arguments)
        for name, value in {**known, **arguments}.items():
            setattr(self, name, value)

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
        """Sets the advantages of a group; drops what the function leaves out."""
        del group_id
        exps = ordered(exps)
        function = ADVANTAGES.built_in(self.function_name)
        reads_logprobs = needs_of(function, self.arguments).mean_logprobs
        samples = samples_of(exps, with_logprobs=reads_logprobs)
        found = function(samples, **self.arguments)
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
    """An advantage of ours, of a trainer's batch."""

    function_name: str

    def __init__(self, **arguments: Any) -> None:
        known = self.default_args()
        self.arguments = _with_unit(known, arguments)
        for name, value in {**known, **arguments}.items():
            setattr(self, name, value)

    def __call__(self, exps: Any, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Writes `advantages` and `returns` into the batch."""
        del kwargs
        found = TOKEN_ADVANTAGES.built_in(self.function_name)(_batch_of(exps), **self.arguments)
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
    return {**defaults, UNIT_ARGUMENT: UNIT_BEFORE} if UNIT_ARGUMENT in defaults else defaults


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
