"""Rows of one prompt that lie in one micro-batch: the prompt is computed once for all of them.

Only attention needs each row whole: it gets the prompt's heads in each, and gives those of one
back. Everything else, projections, experts, norms, is per token. The loss and its gradient are the
same but for rounding. The last token of a prompt stays each row's own: from it, each row predicts
the first token of its answer.

Shapes: T tokens as the model computes them, U tokens of all rows with their prompts, N rows, H
heads, D per head.
"""

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrompts:
    """The places of the rows' tokens among those that are computed.

    shared = SharedPrompts.of(owners_N, numbers_U, positions_U, is_own_U)
    whole_UHD = shared.repeat(heads_THD)
    heads_THD = shared.pick(attended_UHD)
    """

    places_U: torch.Tensor
    """Where in T each token lies."""
    firsts_T: torch.Tensor
    """Where in U each token of T comes from."""
    repeats: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    """Places in T, each at most once, and those in U of their repetition: one pair for the second
    rows of prompts, one for the third and so on."""

    @classmethod
    def of(
        cls,
        owners_N: torch.Tensor,
        numbers_U: torch.Tensor,
        positions_U: torch.Tensor,
        is_own_U: torch.Tensor,
    ) -> "SharedPrompts":
        """Leaves a prompt in its owner's row alone.

        Of each token in U the row, its place in the row, and if each row computes it for itself.
        """
        is_laid_U = is_own_U | (owners_N[numbers_U] == numbers_U)
        begins_N = torch.zeros_like(owners_N)
        is_first_U = positions_U == 0
        begins_N[numbers_U[is_first_U]] = is_first_U.nonzero()[:, 0]
        place_if_laid_U = is_laid_U.cumsum(0) - 1
        source_U = begins_N[owners_N[numbers_U]] + positions_U
        own_U = torch.arange(len(numbers_U), device=numbers_U.device)
        places_U = place_if_laid_U[torch.where(is_laid_U, own_U, source_U)]
        turns_U = _turns(owners_N)[numbers_U]
        repeats = []
        for turn in range(1, int(turns_U.max()) + 1):
            sources = ((turns_U == turn) & ~is_laid_U).nonzero()[:, 0]
            repeats.append((places_U[sources], sources))
        return cls(places_U=places_U, firsts_T=is_laid_U.nonzero()[:, 0], repeats=tuple(repeats))

    def repeat(self, tensor_THD: torch.Tensor) -> torch.Tensor:
        """Gives each row its prompt, [U, H, D]."""
        repeated: torch.Tensor = _Repeat.apply(tensor_THD, self)
        return repeated

    def pick(self, tensor_UHD: torch.Tensor) -> torch.Tensor:
        """Takes each token once, [T, H, D]: a prompt is the same in all of its rows."""
        picked: torch.Tensor = _Pick.apply(tensor_UHD, self)
        return picked


def _turns(owners_N: torch.Tensor) -> torch.Tensor:
    """Numbers the rows of each prompt: the owner is 0, the others follow from 1 on."""
    seen: dict[int, int] = {}
    turns = []
    for number, owner in enumerate(owners_N.tolist()):
        if number != owner:
            seen[owner] = seen.get(owner, 0) + 1
        turns.append(0 if number == owner else seen[owner])
    return torch.tensor(turns, device=owners_N.device)


class _Repeat(torch.autograd.Function):  # type: ignore[misc]  # torch's own is not typed
    """Adds up gradients turn by turn, always in the same order, where torch's own way is slow.

    Half precision would lose what many rows add to one sum, so sums have single precision.
    """

    @staticmethod
    def forward(
        context: Any,  # torch's own is not typed
        tensor_THD: torch.Tensor,
        shared: SharedPrompts,
    ) -> torch.Tensor:
        context.shared = shared
        return tensor_THD.index_select(0, shared.places_U)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient_UHD,) = gradients
        shared: SharedPrompts = context.shared
        precise = torch.promote_types(gradient_UHD.dtype, torch.float32)
        sums_THD = gradient_UHD.index_select(0, shared.firsts_T).to(precise)
        for places, sources in shared.repeats:
            sums_THD[places] = sums_THD[places] + gradient_UHD.index_select(0, sources)
        return sums_THD.to(gradient_UHD.dtype), None


class _Pick(torch.autograd.Function):  # type: ignore[misc]  # torch's own is not typed
    """Selects the first copy of each shared token; the other copies get no gradient."""

    @staticmethod
    def forward(
        context: Any,  # torch's own is not typed
        tensor_UHD: torch.Tensor,
        shared: SharedPrompts,
    ) -> torch.Tensor:
        context.shared = shared
        return tensor_UHD.index_select(0, shared.firsts_T)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient_THD,) = gradients
        shared: SharedPrompts = context.shared
        gradient_UHD = gradient_THD.new_zeros(len(shared.places_U), *gradient_THD.shape[1:])
        gradient_UHD[shared.firsts_T] = gradient_THD
        return gradient_UHD, None
