"""Losses that keep the gates of a mixture of experts balanced and their logits small.

Shapes: N rows of a micro-batch, T tokens of it, k experts of each of them, E experts in all.
"""

from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn

from services.trainer.backend.expert_replay import follows_softmax, gates_of
from trinity.errors import UserError

BALANCE = "router_aux_loss"
ROUTER_Z_LOSS = "router_z_loss"
NO_ROW = -1
"""The row number of padding tokens and of rows without a trained token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceShare:
    """The part that a micro-batch has in the losses of its batch."""

    num_tokens: float
    """Tokens of all rows of the batch that are trained, prompts included."""
    scale: float
    """Ranks over which gradients are averaged: it undoes that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceRows:
    """The tokens that the gates see next, row by row."""

    rows_T: torch.Tensor
    """The row of each, or NO_ROW."""
    lengths_N: torch.Tensor
    """Tokens of each row, on all ranks that share it."""
    group: torch.distributed.ProcessGroup | None
    """The ranks that share rows, if any do."""
    loss_factor: float = 1.0
    """Factor of losses before the pass back."""


class ExpertBalance:
    """Hooks on a model's gates, which add the gradients of two losses to those of their weights.

    For a row of L tokens, of whose choices a share f_i fell on expert i, with the mean probability
    P_i, the first is E sum_i f_i P_i: 1 where all experts are chosen alike. The second is the mean
    square of logsumexp over a token's logits. Both are means over the tokens of a batch, so they do
    not depend on its split into micro-batches, and are summed over the gates.

        balance = ExpertBalance(model, aux_coef=0.01, z_coef=0.001)
        balance.share = BalanceShare(num_tokens=4096, scale=1)      # of a batch; None is off
        balance.rows = BalanceRows(...)                             # of a micro-batch
        model(...).loss.backward()
        balance.take()                                              # its losses, without factors
    """

    def __init__(self, model: nn.Module, *, aux_coef: float, z_coef: float) -> None:
        self.share: BalanceShare | None = None
        self.rows: BalanceRows | None = None
        self._aux_coef, self._z_coef = aux_coef, z_coef
        self._shares_NE: dict[int, torch.Tensor] = {}
        self._losses: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._checked: set[int] = set()
        gates = gates_of(model)
        if not gates:
            raise UserError(
                f"`algorithm.{BALANCE}_coef` and `algorithm.{ROUTER_Z_LOSS}_coef` are for mixtures "
                "of experts whose gates return logits, weights and experts; this model has no such "
                "gates: leave them out"
            )
        for number, gate in enumerate(gates):
            gate.module.register_forward_hook(self._hook(number))

    def begin(self, rows: BalanceRows | None) -> None:
        """Sets the rows of the next pass, and of the recomputation of its layers."""
        self.rows = rows
        self._shares_NE.clear()
        self._losses.clear()

    def take(self) -> dict[str, torch.Tensor]:
        """Returns the micro-batch's part of both losses, as the mean over the gates."""
        if not self._losses:
            return {}
        both = torch.stack([torch.stack(pair) for pair in self._losses.values()]).mean(0)
        if self.rows is not None and self.rows.group is not None:
            torch.distributed.all_reduce(both, group=self.rows.group)
        return {BALANCE: both[0], ROUTER_Z_LOSS: both[1]}

    def _hook(self, number: int) -> Any:
        def balance(module: nn.Module, inputs: object, output: Any) -> Any:
            del inputs
            if self.share is None or self.rows is None or not torch.is_grad_enabled():
                return output
            self._check(number, module, output)
            logits_TE, weights_Tk, experts_Tk = output
            term = self._term(number, logits_TE.float(), experts_Tk)
            return logits_TE, _WithGradient.apply(weights_Tk, term), experts_Tk

        return balance

    def _term(self, number: int, logits_TE: torch.Tensor, experts_Tk: torch.Tensor) -> torch.Tensor:
        """Returns the term of the micro-batch's loss; only its gradient is used."""
        assert self.share is not None and self.rows is not None
        is_counted_T = self.rows.rows_T >= 0
        rows_T = self.rows.rows_T.clamp_min(0)
        if number not in self._shares_NE:  # the same where a layer is computed again
            self._shares_NE[number] = self._choices(logits_TE, experts_Tk, rows_T, is_counted_T)
        probs_TE = torch.softmax(logits_TE, dim=-1)
        uneven_T = (probs_TE * self._shares_NE[number][rows_T]).sum(-1) * logits_TE.shape[-1]
        squares_T = torch.logsumexp(logits_TE, dim=-1).square()
        balance, squares = (
            torch.where(is_counted_T, values_T, 0.0).sum() / self.share.num_tokens
            for values_T in (uneven_T, squares_T)
        )
        scale = self.share.scale * self.rows.loss_factor
        self._losses[number] = (balance.detach(), squares.detach())
        return (self._aux_coef * balance + self._z_coef * squares) * scale

    def _choices(
        self,
        logits_TE: torch.Tensor,
        experts_Tk: torch.Tensor,
        rows_T: torch.Tensor,
        is_counted_T: torch.Tensor,
    ) -> torch.Tensor:
        """Returns the share of each row's choices that fell on each expert, [N, E]."""
        assert self.rows is not None
        num_experts, num_chosen = logits_TE.shape[-1], experts_Tk.shape[-1]
        places_Tk = rows_T[:, None] * num_experts + experts_Tk
        counted_Tk = is_counted_T[:, None].expand_as(places_Tk).to(logits_TE.dtype)
        lengths_N = self.rows.lengths_N.to(logits_TE.device)
        logits_TE = logits_TE.detach()
        counts = logits_TE.new_zeros(len(lengths_N) * num_experts)
        counts.scatter_add_(0, places_Tk.flatten(), counted_Tk.flatten())
        if self.rows.group is not None:
            torch.distributed.all_reduce(counts, group=self.rows.group)
        return counts.view(-1, num_experts) / (lengths_N[:, None] * num_chosen)

    def _check(self, number: int, module: nn.Module, output: Any) -> None:
        """Checks once that a gate's weights are those of a softmax over its logits."""
        if number in self._checked:
            return
        if not follows_softmax(module, output):
            raise UserError(
                f"{type(module).__name__} weights experts in a way that is not supported, so their "
                f"balance is not known: leave out `algorithm.{BALANCE}_coef` and "
                f"`algorithm.{ROUTER_Z_LOSS}_coef`"
            )
        self._checked.add(number)


class _WithGradient(torch.autograd.Function):  # type: ignore[misc]  # torch's own is not typed
    """Passes a tensor on; the pass back starts at a second one, too, with a gradient of 1."""

    @staticmethod
    def forward(
        context: Any,  # torch's own is not typed
        passed: torch.Tensor,
        term: torch.Tensor,
    ) -> torch.Tensor:
        context.like = (term.shape, term.dtype, term.device)
        return passed.view_as(passed)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shape, dtype, device = context.like
        return gradients[0], torch.ones(shape, dtype=dtype, device=device)


def rows_of_tokens(micro_batch: TensorDict) -> torch.Tensor:
    """Returns the row of each token of a padded micro-batch, NO_ROW for padding, [N * L]."""
    tokens_NL, lengths_N = micro_batch["input_ids"], micro_batch["lengths"]
    places_L = torch.arange(tokens_NL.shape[1], device=tokens_NL.device)
    numbers_N = torch.arange(len(tokens_NL), device=tokens_NL.device)
    is_token_NL = places_L < lengths_N[:, None].to(tokens_NL.device)
    return torch.where(is_token_NL, numbers_N[:, None], NO_ROW).flatten()


def trained_rows(rows_T: torch.Tensor, micro_batch: TensorDict) -> torch.Tensor:
    """Returns the same, without the rows of which no token is trained."""
    is_trained_N = micro_batch["loss_mask"].any(-1).to(rows_T.device)
    is_kept_T = (rows_T >= 0) & is_trained_N[rows_T.clamp_min(0)]
    return torch.where(is_kept_T, rows_T, NO_ROW)
