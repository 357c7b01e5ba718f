"""Cutting an optimizer batch into micro-batches, as ranks do."""

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch.nn.functional import pad

from tests.unit.algorithm.policy_loss.batches import Loss, Outcome, outcome, totals_of
from trinity.algorithm.aggregation import LossAggMode
from trinity.algorithm.policy_loss.inputs import PolicyInputs


def take(inputs: PolicyInputs, rows: Sequence[int]) -> PolicyInputs:
    """These rows in this order."""
    index = torch.as_tensor(list(rows), dtype=torch.long)
    return replace(inputs, **{name: values[index] for name, values in _tensors(inputs).items()})


def padded(inputs: PolicyInputs, left: int, right: int) -> PolicyInputs:
    """With columns before and after that nothing is trained on."""
    widened = {
        name: pad(values, (left, right))
        for name, values in _tensors(inputs).items()
        if values.ndim == 2
    }
    return replace(inputs, **widened)


def empty_rows(inputs: PolicyInputs, num_rows: int) -> PolicyInputs:
    """What a rank without rows takes part with."""
    empty = {
        name: torch.zeros_like(values[:1]).repeat(num_rows, *[1] * (values.ndim - 1))
        for name, values in _tensors(inputs).items()
    }
    return replace(inputs, **empty)


def _tensors(inputs: PolicyInputs) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def random_cut(
    num_rows: int, num_parts: int, draw: np.random.Generator, *, in_pairs: bool
) -> list[list[int]]:
    """All rows, shuffled, in parts of which some may be empty; pairs stay together."""
    size = 2 if in_pairs else 1
    units = draw.permutation(num_rows // size)
    places = np.sort(draw.integers(0, len(units) + 1, num_parts - 1))
    return [
        [size * int(unit) + place for unit in part for place in range(size)]
        for part in np.split(units, places)
    ]


def outcome_in_parts(
    loss: Loss,
    inputs: PolicyInputs,
    parts: Sequence[Sequence[int]],
    mode: LossAggMode,
    draw: np.random.Generator,
    factors_B: torch.Tensor | None = None,
) -> Outcome:
    """The sum over parts, each padded at random; gradients go back to where the rows were."""
    totals = totals_of(inputs)
    whole = Outcome(torch.zeros((), dtype=torch.float64), torch.zeros_like(inputs.logprobs_BT), {})
    for rows in parts:
        left, right = (int(number) for number in draw.integers(0, 3, 2))
        chosen = take(inputs, rows) if rows else empty_rows(inputs, 2)
        factors_B1 = None if factors_B is None or not rows else factors_B[list(rows), None]
        found = outcome(loss, padded(chosen, left, right), mode, totals, factors_B1)
        if rows:
            width = inputs.mask_BT.shape[1]
            whole.gradient_BT[list(rows)] += found.gradient_BT[:, left : left + width]
        figures = {
            name: whole.figures.get(name, 0.0) + value for name, value in found.figures.items()
        }
        whole = Outcome(whole.loss + found.loss, whole.gradient_BT, figures)
    return whole
