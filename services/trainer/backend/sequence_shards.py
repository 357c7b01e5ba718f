"""Packed rows that several ranks share: each has a part of the tokens, and all of some heads.

Shapes: T tokens of a packed row, padded so that ranks share them evenly, t tokens of a rank, S
outputs, s outputs of a rank, H heads of queries and K of keys, D per head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from verl.utils.ulysses import (
    gather_heads_scatter_seq,
    gather_seq_scatter_heads,
    get_ulysses_sequence_parallel_group,
)

from services.trainer.backend.packed_attention import PackedRows

SEQUENCE_DIM, HEAD_DIM = 1, 2


@dataclass(frozen=True, slots=True)
class SequenceShards:
    """The ranks that share sequences, as veRL's engine has them while it computes.

    Every rank of them computes the same micro-batch, its own part of the tokens:

        shards = SequenceShards.current()
        own = shards.part_of(packed)                  # one part; `own.counts` are of all
        output = model(input_ids=own.tokens_1t, ..., packed_exchange=shards)
        values_S = shards.gather(values_s, own.counts)
    """

    group: dist.ProcessGroup
    size: int
    index: int

    @classmethod
    def current(cls) -> "SequenceShards | None":
        """Returns the ranks that share sequences now; None where each has its own."""
        group = get_ulysses_sequence_parallel_group()
        if group is None:
            return None
        return cls(group, dist.get_world_size(group), dist.get_rank(group))

    def part_of(self, packed: PackedRows) -> "OwnPart":
        """Returns this rank's tokens, and the outputs among them; the row is padded already."""
        length = packed.tokens_1T.shape[1] // self.size
        begin = self.index * length
        predicting_S = packed.predicting_S
        bounds = torch.arange(self.size + 1, device=predicting_S.device) * length
        places = torch.searchsorted(predicting_S, bounds).tolist()
        own = slice(places[self.index], places[self.index + 1])
        return OwnPart(
            tokens_1t=packed.tokens_1T[:, begin : begin + length],
            positions_1t=packed.positions_1T[:, begin : begin + length],
            predicting_s=predicting_S[own] - begin,
            labels_s=packed.labels_S[own],
            rows_s=packed.rows_S[own],
            counts=tuple(after - before for before, after in pairwise(places)),
        )

    def scatter_heads(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Trades heads for tokens: from [1, t, H, D] to [1, T, H / ranks, D].

        Heads of keys and values that are fewer than the ranks are repeated.
        """
        return [
            gather_seq_scatter_heads(
                self._repeated(tensor), seq_dim=SEQUENCE_DIM, head_dim=HEAD_DIM, group=self.group
            )
            for tensor in tensors
        ]

    def gather_heads(self, attended: torch.Tensor) -> torch.Tensor:
        """Trades tokens for heads: from [1, T, H / ranks, D] to [1, t, H, D]."""
        own: torch.Tensor = gather_heads_scatter_seq(
            attended, seq_dim=SEQUENCE_DIM, head_dim=HEAD_DIM, group=self.group
        )
        return own

    def own_heads(self, values_H: torch.Tensor) -> torch.Tensor:
        """Takes those of this rank's heads, [H / ranks]."""
        return values_H.chunk(self.size)[self.index]

    def gather(self, values_s: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Joins the outputs of all parts, [S]; the gradient of a part goes back to its rank."""
        joined: torch.Tensor = _Join.apply(values_s, tuple(counts), self)
        return joined

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        times = max(self.size // tensor.shape[HEAD_DIM], 1)
        return tensor if times == 1 else tensor.repeat_interleave(times, HEAD_DIM)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPart:
    """A rank's part of a packed row."""

    tokens_1t: torch.Tensor
    positions_1t: torch.Tensor
    predicting_s: torch.Tensor
    """Place in t of the token before each token of a response."""
    labels_s: torch.Tensor
    rows_s: torch.Tensor
    counts: tuple[int, ...]
    """Outputs of each rank's part."""


class _Join(torch.autograd.Function):  # type: ignore[misc]  # torch's own is not typed
    """Gathers parts of different lengths.

    All ranks compute the same loss of the whole sequence, so each keeps its part of the gradient.
    """

    @staticmethod
    def forward(
        context: Any,  # torch's own is not typed
        values_s: torch.Tensor,
        counts: tuple[int, ...],
        shards: SequenceShards,
    ) -> torch.Tensor:
        begin = sum(counts[: shards.index])
        context.own = slice(begin, begin + counts[shards.index])
        longest = max(max(counts), 1)
        padded = values_s.new_zeros(longest)
        padded[: len(values_s)] = values_s
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=shards.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gradients[0][context.own].contiguous(), None, None
