"""GDPO: compares each part of the reward within the group separately, then adds them up."""

from collections.abc import Mapping

import numpy as np

from trinity.algorithm.token_advantage.grpo_verl import normalize_in_groups
from trinity.algorithm.token_advantage.masked import broadcast_rows, whitened
from trinity.algorithm.token_advantage.token_batch import FloatVector, TokenAdvantages, TokenBatch
from trinity.algorithm.token_advantage.units import Units
from trinity.algorithm.units import Unit
from trinity.errors import UserError

KEY = "advantage_fn_args.reward_weights"


def gdpo(
    batch: TokenBatch,
    *,
    reward_weights: dict[str, float] | None = None,
    epsilon: float = 1e-6,
    norm_adv_by_std_in_grpo: bool = True,
    unit: Unit = "run",
) -> TokenAdvantages:
    """A = whiten(sum_k w_k A_k) over the batch's tokens, A_k GRPO's advantage of reward part k.

    `reward_weights` names the parts that count and their w_k; by default all do, each with 1. No
    part then outweighs another by its size.

    unit "run": each run counts once in its group, with the means of its rows' parts, and all its
        rows get its A; "sample": every row counts.

    https://arxiv.org/abs/2601.05242
    """
    parts = batch.parts
    weights = _checked(reward_weights, parts)
    units = Units.of_batch(batch, unit)
    total_U = np.zeros(len(units.first_U))
    metrics: dict[str, float] = {}
    for name, weight in weights.items():
        values_B = _part(parts, name)
        total_U += weight * normalize_in_groups(
            units.means_U(values_B),
            units.groups,
            epsilon=epsilon,
            divide_by_std=norm_adv_by_std_in_grpo,
        )
        metrics |= {f"gdpo/{name}/{figure}": x for figure, x in _figures(values_B).items()}
    rows_BT = broadcast_rows(units.spread_B(total_U), batch.mask_BT)
    advantages_BT = whitened(rows_BT, batch.mask_BT)
    return TokenAdvantages(advantages_BT=advantages_BT, metrics=metrics)


def _checked(
    weights: Mapping[str, float] | None, parts: Mapping[str, FloatVector]
) -> Mapping[str, float]:
    if weights is None:
        return dict.fromkeys(parts, 1.0)
    if not isinstance(weights, dict) or not weights:
        raise UserError(f"{KEY} is {weights!r}: give parts of the reward with their weights")
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise UserError(f"{KEY}.{name} is {weight!r}: give a number")
    return weights


def _part(parts: Mapping[str, FloatVector], name: str) -> FloatVector:
    try:
        values_B = parts[name]
    except KeyError:
        raise UserError(
            f"{KEY}.{name} is no part of the rewards, which have {', '.join(parts)}"
        ) from None
    if missing := int(np.isnan(values_B).sum()):
        raise UserError(
            f"{missing} of {len(values_B)} rollouts have no reward part `{name}`: name in {KEY} "
            "parts that all have"
        )
    return values_B


def _figures(values_B: FloatVector) -> dict[str, float]:
    if not len(values_B):
        return {}
    return {
        "mean": float(values_B.mean()),
        "std": float(values_B.std()),
        "max": float(values_B.max()),
        "min": float(values_B.min()),
    }
