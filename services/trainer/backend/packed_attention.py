"""Attention over rows that lie one after the other in one row, without flash-attn.

Shapes: T tokens in all, n sequences of L tokens, H heads of queries and K of keys, D per head.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, groupby
from typing import Protocol

import torch
from torch import nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from services.trainer.backend.shared_prompts import SharedPrompts
from trinity.config.plan.arithmetic import CARRIED, PACKED_ATTENTION, SCORE_CHANGES
from trinity.errors import UserError

RUNS_ARGUMENT = "packed_runs"
"""The argument of a model's forward pass by which the layers learn where sequences begin."""
EXCHANGE_ARGUMENT = "packed_exchange"
"""The argument by which they learn which ranks share the row, if any do."""
SHARED_ARGUMENT = "packed_shared"
"""The argument by which they learn which sequences share a prompt, if any do."""
Runs = tuple[tuple[int, int], ...]
"""Sequences in the order in which they lie: (length, number of neighbours of that length)."""
HARMLESS = frozenset(
    {RUNS_ARGUMENT, EXCHANGE_ARGUMENT, SHARED_ARGUMENT, "is_causal", "position_ids", "use_cache"}
    | {"output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
    | {"logits_to_keep", "cache_position"}
)
"""Arguments of attention layers that leave the scores as they are."""
_HALF = (torch.float16, torch.bfloat16)
Kernel = Callable[[Sequence[torch.Tensor], Runs, float | None, int | None], torch.Tensor]


class HeadExchange(Protocol):
    """Ranks that share a row; tensors are [1, tokens, heads, D]."""

    def scatter_heads(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Trades a rank's tokens of all heads for all tokens of its heads."""

    def gather_heads(self, attended: torch.Tensor) -> torch.Tensor:
        """Trades them back."""

    def own_heads(self, values_H: torch.Tensor) -> torch.Tensor:
        """Takes those of a rank's heads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreChanges:
    """The way in which scores become weights."""

    scaling: float | None = None
    window: int | None = None
    dropout: float = 0.0
    softcap: float | None = None
    sinks_H: torch.Tensor | None = None
    """A score of each head for a token without a value, which all tokens see."""

    @property
    def fit_kernels(self) -> bool:
        """True if kernels that keep the scores to themselves can compute them."""
        return self.softcap is None and self.sinks_H is None


@cache
def register() -> None:
    """Makes the function known to transformers, without a mask, and guards those that drop things.

    Transformers' own take the arguments that they cannot compute, and go on without them.
    """
    ALL_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED_ATTENTION, _no_mask)
    for name in ("sdpa", *(known for known in ALL_ATTENTION_FUNCTIONS if "flash" in known)):
        ALL_ATTENTION_FUNCTIONS.register(name, _guarded(name, ALL_ATTENTION_FUNCTIONS[name]))


def _guarded(name: str, function: Callable[..., object]) -> Callable[..., object]:
    """Returns the function with a check that it supports the model's changes to scores."""
    dropped = [change for change in SCORE_CHANGES if change not in CARRIED.get(name, ())]

    def checked(module: nn.Module, *tensors: object, **options: object) -> object:
        lost = [SCORE_CHANGES[change] for change in dropped if options.get(change) is not None]
        if lost:
            raise UserError(
                f"`{name}` would leave out {lost[0]} of this model's {type(module).__name__}: set "
                "`override_config.attn_implementation: eager`"
            )
        return function(module, *tensors, **options)

    return checked


def runs_of(lengths: Sequence[int]) -> Runs:
    """Joins neighbours of equal length, which one call of sdpa can compute."""
    return tuple((length, len(list(same))) for length, same in groupby(lengths))


def _no_mask(*_: object, **__: object) -> None:
    return None


def attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """Computes causal attention within each sequence, from [1, H, T, D] to [1, T, H, D].

    Where ranks share the row, T is a rank's part, and the sequences are those of the whole row.
    Where sequences share prompts, T has each prompt once.

    Raises: UserError if the model asks for something that it cannot do.
    """
    del attention_mask
    runs = _checked_runs(module, others)
    tensors = [tensor.transpose(1, 2) for tensor in (query, key, value)]
    exchange: HeadExchange | None = others.get(EXCHANGE_ARGUMENT)  # type: ignore[assignment]
    if exchange is not None:
        tensors = exchange.scatter_heads(tensors)
        s_aux = exchange.own_heads(s_aux) if s_aux is not None else None
    tensors = [tensor[0] for tensor in tensors]
    scores = ScoreChanges(
        scaling=scaling, window=sliding_window, dropout=dropout, softcap=softcap, sinks_H=s_aux
    )
    shared: SharedPrompts | None = others.get(SHARED_ARGUMENT)  # type: ignore[assignment]
    if shared is not None:
        tensors = [shared.repeat(tensor) for tensor in tensors]
    fits = query.is_cuda and query.dtype in _HALF and not dropout and scores.fit_kernels
    kernel = _varlen_kernel() if fits else None
    if kernel is not None:
        attended_THD = kernel(tensors, runs, scaling, sliding_window)
    else:
        attended_THD = _attend_by_runs(tensors, runs, scores)
    if shared is not None:
        attended_THD = shared.pick(attended_THD)
    if exchange is not None:
        return exchange.gather_heads(attended_THD[None]), None
    return attended_THD[None], None


def _checked_runs(module: nn.Module, others: dict[str, object]) -> Runs:
    kind = type(module).__name__
    extra = [name for name in others if name not in HARMLESS and others[name] is not None]
    if extra:
        raise UserError(
            f"rows cannot be packed for this model, as its {kind} has {', '.join(extra)}: "
            "set `trainer.use_remove_padding: false`"
        )
    runs = others.get(RUNS_ARGUMENT)
    is_causal = others.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not isinstance(runs, tuple) or not is_causal:
        raise UserError(
            f"rows cannot be packed for this model, as its {kind} is not told where rows begin or "
            "looks ahead: set `trainer.use_remove_padding: false`"
        )
    return runs


def _attend_by_runs(
    tensors: Sequence[torch.Tensor], runs: Runs, scores: ScoreChanges
) -> torch.Tensor:
    """Computes all neighbours of one length at a time, without padding.

    `split` joins its gradients in one pass; each slice would have a gradient as long as the row.
    """
    sizes = [length * number for length, number in runs]
    of_runs = zip(*(tensor.split(sizes) for tensor in tensors), strict=True)
    parts: list[torch.Tensor] = []
    attend_run = _sdpa if scores.fit_kernels else _by_scores
    for (length, number), of_run in zip(runs, of_runs, strict=True):
        query, key, value = (
            tensor.unflatten(0, (number, length)).transpose(1, 2) for tensor in of_run
        )
        parts.append(attend_run(query, key, value, scores).transpose(1, 2).flatten(0, 1))
    return torch.cat(parts)


def _sdpa(
    query_nHLD: torch.Tensor, key_nKLD: torch.Tensor, value_nKLD: torch.Tensor, scores: ScoreChanges
) -> torch.Tensor:
    length, shares = query_nHLD.shape[2], query_nHLD.shape[1] // key_nKLD.shape[1]
    window, mask_LL = scores.window, None
    if window is not None and length > window:
        mask_LL = _band(length, window, query_nHLD.device)
        # With a mask, grouped heads take the slow way.
        key_nKLD, value_nKLD = (t.repeat_interleave(shares, 1) for t in (key_nKLD, value_nKLD))
    return nn.functional.scaled_dot_product_attention(
        query_nHLD,
        key_nKLD,
        value_nKLD,
        attn_mask=mask_LL,
        is_causal=mask_LL is None,
        dropout_p=scores.dropout,
        scale=scores.scaling,
        enable_gqa=shares > 1 and mask_LL is None,
    )


def _by_scores(
    query_nHLD: torch.Tensor, key_nKLD: torch.Tensor, value_nKLD: torch.Tensor, scores: ScoreChanges
) -> torch.Tensor:
    """Caps the scores and adds the sinks, which takes all scores of a run in memory."""
    number, heads, length, size = query_nHLD.shape
    shares = heads // key_nKLD.shape[1]
    key_nHLD, value_nHLD = (t.repeat_interleave(shares, 1) for t in (key_nKLD, value_nKLD))
    scale = 1 / math.sqrt(size) if scores.scaling is None else scores.scaling
    scores_nHLL = query_nHLD @ key_nHLD.transpose(2, 3) * scale
    if scores.softcap is not None:
        scores_nHLL = torch.tanh(scores_nHLL / scores.softcap) * scores.softcap
    seen_LL = _band(length, scores.window or length, query_nHLD.device)
    scores_nHLL = scores_nHLL.masked_fill(~seen_LL, -math.inf)
    if scores.sinks_H is not None:
        sinks = scores.sinks_H.to(scores_nHLL.dtype).view(1, heads, 1, 1)
        scores_nHLL = torch.cat([scores_nHLL, sinks.expand(number, -1, length, 1)], -1)
    weights_nHLL = scores_nHLL.softmax(-1, dtype=torch.float32)[..., :length]
    weights_nHLL = nn.functional.dropout(weights_nHLL.to(value_nHLD.dtype), scores.dropout)
    return weights_nHLL @ value_nHLD


def _band(length: int, window: int, device: torch.device) -> torch.Tensor:
    """Returns the mask of the last `window` tokens, the own one included."""
    places_L = torch.arange(length, device=device)
    back_LL = places_L[:, None] - places_L[None, :]
    return (back_LL >= 0) & (back_LL < window)


@cache
def _varlen_kernel() -> Kernel | None:
    """Returns torch's own attention over packed rows, where this version has it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    if not {"scale", "window_size"} <= known.keys():
        return None

    def attend_varlen(
        tensors: Sequence[torch.Tensor], runs: Runs, scaling: float | None, window: int | None
    ) -> torch.Tensor:
        query, key, value = tensors
        shares = query.shape[1] // key.shape[1]
        options: dict[str, object] = {"scale": scaling, "window_size": (_left(window), 0)}
        if shares > 1 and "enable_gqa" in known:
            options["enable_gqa"] = True
        elif shares > 1:
            key, value = (tensor.repeat_interleave(shares, 1) for tensor in (key, value))
        ends = [0, *accumulate(length for length, number in runs for _ in range(number))]
        begins = torch.tensor(ends, dtype=torch.int32, device=query.device)
        longest = max(length for length, _ in runs)
        attended: torch.Tensor = varlen_attn(
            query.contiguous(),
            key.contiguous(),
            value.contiguous(),
            begins,
            begins,
            longest,
            longest,
            **options,
        )
        return attended

    return attend_varlen


def _left(window: int | None) -> int:
    """Returns the tokens before the own one that are seen; -1 is all."""
    return -1 if window is None else window - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RowExtents:
    """The places of the rows' tokens in a padded micro-batch."""

    lengths_N: torch.Tensor
    prompt_lengths_N: torch.Tensor
    first_token: int
    """The place in the sequence that column 0 of the outputs belongs to."""
    num_columns: int
    prompt_owners_N: torch.Tensor | None = None
    """The row in which each row's prompt is computed; None if that is always the row itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedRows:
    """Rows laid one after the other, the shortest first, so that equal lengths are neighbours.

    A prompt that several rows have lies there once, but for its last token, from which each row
    predicts; attention alone sees it in each of them.

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
    shared: SharedPrompts | None = None

    @classmethod
    def from_padded(cls, tokens_NL: torch.Tensor, extents: RowExtents) -> "PackedRows":
        """Leaves out the padding; every row keeps its own positions."""
        order_N = torch.argsort(extents.lengths_N, stable=True)
        lengths_N = extents.lengths_N[order_N]
        places_L = torch.arange(tokens_NL.shape[1], device=tokens_NL.device)
        positions_NL = places_L.expand(len(order_N), -1)
        is_token_NL = positions_NL < lengths_N[:, None]
        tokens_U = tokens_NL[order_N][is_token_NL]
        positions_U = positions_NL[is_token_NL]
        numbers_U = order_N[:, None].expand_as(is_token_NL)[is_token_NL]
        is_answer_U = positions_U >= extents.prompt_lengths_N[numbers_U]
        answered_S = is_answer_U.nonzero()[:, 0]
        runs = runs_of(lengths_N.tolist())
        if extents.prompt_owners_N is None:
            shared, laid, predicting_S = None, slice(None), answered_S - 1
        else:
            is_own_U = positions_U >= extents.prompt_lengths_N[numbers_U] - 1
            shared = SharedPrompts.of(extents.prompt_owners_N, numbers_U, positions_U, is_own_U)
            laid, predicting_S = shared.firsts_T, shared.places_U[answered_S - 1]
        return cls(
            tokens_1T=tokens_U[laid][None],
            positions_1T=positions_U[laid][None],
            numbers_T=numbers_U[laid],
            runs=runs,
            predicting_S=predicting_S,
            labels_S=tokens_U[answered_S],
            rows_S=numbers_U[answered_S],
            columns_S=positions_U[answered_S] - extents.first_token,
            shape_NC=(len(order_N), extents.num_columns),
            shared=shared,
        )

    def padded_to_multiple(self, of: int) -> "PackedRows":
        """Appends padding as a separate sequence, which no other attends to or trains on."""
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

    def row_of_each(self) -> torch.Tensor:
        """Returns the row of each token, [T]; -1 for tokens of padding."""
        missing = self.tokens_1T.shape[1] - len(self.numbers_T)
        return nn.functional.pad(self.numbers_T, (0, missing), value=-1)

    def spread(self, values_S: torch.Tensor) -> torch.Tensor:
        """Puts values of the responses' tokens at their rows and columns; 0 elsewhere."""
        spread_NC = values_S.new_zeros(self.shape_NC)
        return spread_NC.index_put((self.rows_S, self.columns_S), values_S)
