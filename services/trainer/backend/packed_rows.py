"""Rows of a micro-batch as one row without padding.

Shapes: N rows of L columns, T tokens in all, S tokens of responses, C columns of outputs.
"""

from dataclasses import dataclass, replace

import torch
from torch import nn

from services.trainer.backend.packed_attention import Runs, runs_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExtents:
    """The places of the rows' tokens in a padded micro-batch."""

    lengths_N: torch.Tensor
    prompt_lengths_N: torch.Tensor
    first_token: int
    """The place in the sequence that column 0 of the outputs belongs to."""
    num_columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows laid one after the other, the shortest first, so that equal lengths are neighbours.

    packed = PackedRows.from_padded(tokens_NL, extents)
    output = model(input_ids=packed.tokens_1T, position_ids=packed.positions_1T, ...)
    values_NC = packed.spread(values_S)
    """

    tokens_1T: torch.Tensor
    positions_1T: torch.Tensor
    numbers_T: torch.Tensor
    """The row of each token, without those of padding."""
    runs: Runs
    predicting_S: torch.Tensor
    """Place in T of the token before each token of a response."""
    labels_S: torch.Tensor
    rows_S: torch.Tensor
    columns_S: torch.Tensor
    shape_NC: tuple[int, int]

    @classmethod
    def from_padded(cls, tokens_NL: torch.Tensor, extents: RowExtents) -> "PackedRows":
        """Leaves out the padding; every row keeps its own positions."""
        order_N = torch.argsort(extents.lengths_N, stable=True)
        lengths_N = extents.lengths_N[order_N]
        places_L = torch.arange(tokens_NL.shape[1], device=tokens_NL.device)
        positions_NL = places_L.expand(len(order_N), -1)
        is_token_NL = positions_NL < lengths_N[:, None]
        tokens_T = tokens_NL[order_N][is_token_NL]
        positions_T = positions_NL[is_token_NL]
        numbers_T = order_N[:, None].expand_as(is_token_NL)[is_token_NL]
        answered_S = (positions_T >= extents.prompt_lengths_N[numbers_T]).nonzero()[:, 0]
        return cls(
            tokens_1T=tokens_T[None],
            positions_1T=positions_T[None],
            numbers_T=numbers_T,
            runs=runs_of(lengths_N.tolist()),
            predicting_S=answered_S - 1,
            labels_S=tokens_T[answered_S],
            rows_S=numbers_T[answered_S],
            columns_S=positions_T[answered_S] - extents.first_token,
            shape_NC=(len(order_N), extents.num_columns),
        )

    def padded_to_multiple(self, of: int) -> "PackedRows":
        """Adds tokens that nothing sees or is learned from, as a sequence of their own."""
        missing = -self.tokens_1T.shape[1] % of
        if not missing:
            return self
        return replace(
            self,
            tokens_1T=nn.functional.pad(self.tokens_1T, (0, missing)),
            positions_1T=torch.cat(
                [self.positions_1T, torch.arange(missing, device=self.positions_1T.device)[None]], 1
            ),
            runs=(*self.runs, (missing, 1)),
        )

    def lay(self, values_NL: torch.Tensor) -> torch.Tensor:
        """Lays values of the rows' tokens as the tokens lie, [T, ...]; 0 for tokens of padding."""
        own_T = values_NL[self.numbers_T, self.positions_1T[0, : len(self.numbers_T)]]
        missing = self.tokens_1T.shape[1] - len(own_T)
        return torch.cat([own_T, own_T.new_zeros(missing, *own_T.shape[1:])])

    def spread(self, values_S: torch.Tensor) -> torch.Tensor:
        """Puts values of the responses' tokens at their rows and columns; 0 elsewhere."""
        spread_NC = values_S.new_zeros(self.shape_NC)
        return spread_NC.index_put((self.rows_S, self.columns_S), values_S)
