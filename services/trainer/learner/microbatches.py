"""Splits a batch into micro-batches over the ranks, and gathers their outputs."""

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import numpy as np

from services.trainer.collectives import Ranks
from services.trainer.learner.prepared_batch import (
    BoolVector,
    MicroBatch,
    ResponseLayout,
    RowUnit,
    row_units,
    units_of_rank,
)
from services.trainer.types import Metrics, TrainRow
from trinity.algorithm.token_advantage.token_batch import BoolMatrix, FloatMatrix
from trinity.config.plan.sizes import critic_rows, inference_rows, policy_rows
from trinity.config.plan.stage_plan import StagePlan

ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """The size of micro-batches."""

    max_tokens: int
    """Of all ranks that share its sequences."""
    num_rows: int | None = None
    """Rows of each, however long they are; None cuts by tokens."""

    @classmethod
    def of_policy(cls, plan: StagePlan) -> "MicroBatchLimits":
        """Returns the limits of the policy's training."""
        return cls._of(plan, None, policy_rows(plan))

    @classmethod
    def without_gradients(cls, plan: StagePlan) -> "MicroBatchLimits":
        """Returns the limits of passes of actor and reference that only compute outputs."""
        tokens = plan.config.trainer.log_prob_max_token_len_per_gpu
        return cls._of(plan, tokens, inference_rows(plan))

    @classmethod
    def of_critic(cls, plan: StagePlan) -> "MicroBatchLimits":
        """Returns the limits of all passes of the critic."""
        tokens = plan.config.trainer.critic.max_token_len_per_gpu
        return cls._of(plan, tokens, critic_rows(plan))

    @classmethod
    def _of(cls, plan: StagePlan, tokens: int | None, rows: int | None) -> "MicroBatchLimits":
        of_rank = tokens or plan.max_token_len_per_gpu
        return cls(max_tokens=of_rank * plan.sequence_parallel_size, num_rows=rows)


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSplitter:
    """Splits batches for one rank.

    Every rank gets the same number of micro-batches, as calls are collective.
    """

    ranks: Ranks
    limits: MicroBatchLimits
    keep_order: bool
    """True if neighbours stay neighbours."""
    deals_tokens: bool
    """True if ranks get equal numbers of tokens; else of rows, as they stand."""

    def parts(
        self,
        rows: Sequence[TrainRow],
        mask_BT: BoolMatrix,
        *,
        packed: bool,
        shares_prompts: bool = False,
    ) -> Iterator[tuple[MicroBatch, bool]]:
        """Yields micro-batches of the units that the mask leaves tokens in, and if each is the
        last.

        Rows that share a prompt are kept together where the order of rows does not matter. Empty
        micro-batches are added up to the busiest rank's number, which is at least 1.
        """
        units = self._share(rows, np.asarray(mask_BT.any(-1)), shares_prompts)
        if shares_prompts and self._is_free:
            units = together(rows, units, self.limits.max_tokens)
        batches = self._cut(rows, units, packed)
        num_parts = max(1, int(self.ranks.all_reduce_max(len(batches))))
        if packed and self._is_free and len(batches) < num_parts:
            # Parts as many as the busiest rank's keep the ranks in step.
            more = balanced_parts(rows, units, min(num_parts, len(units)))
            batches = more if _fit(rows, more, self.limits.max_tokens) else batches
        logger.debug(
            "the batch is split",
            extra={
                "rows": len(rows),
                "of_rank": sum(map(len, units)),
                "micro_batches": num_parts,
                "max_tokens": self.limits.max_tokens,
            },
        )
        for index in range(num_parts):
            yield batches[index] if index < len(batches) else (), index == num_parts - 1

    @property
    def _is_free(self) -> bool:
        return self.deals_tokens and not self.keep_order and self.limits.num_rows is None

    def _share(
        self, rows: Sequence[TrainRow], has_tokens_B: BoolVector, shares_prompts: bool
    ) -> Sequence[RowUnit]:
        units, share, num_shares = row_units(rows), self.ranks.share, self.ranks.num_shares

        def is_trained(unit: RowUnit) -> bool:
            return bool(has_tokens_B[list(unit)].any())

        if self.deals_tokens and not self.keep_order:
            trained = [unit for unit in units if is_trained(unit)]
            if shares_prompts and self._is_free and num_shares > 1:
                return deal_prompts(rows, trained, num_shares, self.limits.max_tokens)[share]
            return deal_evenly(trained, lambda unit: _num_tokens(rows, unit), num_shares)[share]
        return [unit for unit in units_of_rank(units, share, num_shares) if is_trained(unit)]

    def _cut(
        self, rows: Sequence[TrainRow], units: Sequence[RowUnit], packed: bool
    ) -> list[MicroBatch]:
        limit = self.limits
        if limit.num_rows is not None:
            return parts_of_rows(units, limit.num_rows)
        if not packed:
            return micro_batches(rows, units, limit.max_tokens, keep_order=self.keep_order)
        if self._is_free:
            return packed_parts(rows, units, limit.max_tokens)
        return consecutive_parts(rows, units, limit.max_tokens)


def deal_evenly(
    items: Sequence[ValueT], weight: Callable[[ValueT], int], num_shares: int
) -> list[list[ValueT]]:
    """Deals items so that all shares weigh about the same: the heaviest first, to the lightest.

    Items of a share keep their order. verl's partition by differences comes closer, but takes
    seconds for thousands of rows.
    """
    weights = [weight(item) for item in items]
    shares: list[list[int]] = [[] for _ in range(num_shares)]
    lightest = [(0, number) for number in range(num_shares)]
    for index in sorted(range(len(items)), key=lambda index: (-weights[index], index)):
        carried, number = heapq.heappop(lightest)
        shares[number].append(index)
        heapq.heappush(lightest, (carried + weights[index], number))
    return [[items[index] for index in sorted(share)] for share in shares]


def deal_prompts(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], num_shares: int, max_tokens: int
) -> list[list[RowUnit]]:
    """Deals rows of one prompt to one share, unless the busiest share then computes more."""
    alone = deal_evenly(units, lambda unit: _num_tokens(rows, unit), num_shares)
    joined = together(rows, units, max_tokens)
    whole = deal_evenly(joined, lambda unit: _num_computed(rows, unit), num_shares)

    def busiest(shares: Sequence[Sequence[RowUnit]]) -> int:
        return max(_num_computed(rows, tuple(chain.from_iterable(share))) for share in shares)

    return whole if busiest(whole) <= busiest(alone) else alone


def together(rows: Sequence[TrainRow], units: Sequence[RowUnit], max_tokens: int) -> list[RowUnit]:
    """Joins units of one prompt, as many as fit into a micro-batch."""
    joined: list[list[int]] = []
    sizes: list[int] = []
    newest: dict[bytes | int, int] = {}
    for unit in units:
        prompt = shareable(rows[unit[0]]) or unit[0]
        place, size = newest.get(prompt), _num_tokens(rows, unit)
        if place is not None and sizes[place] + size <= max_tokens:
            joined[place].extend(unit)
            sizes[place] += size
        else:
            newest[prompt] = len(joined)
            joined.append(list(unit))
            sizes.append(size)
    return list(joined)


def shareable(row: TrainRow) -> bytes:
    """Returns the shareable prompt tokens as bytes: all but the last, which each row computes.

    Empty for prompts of one token.
    """
    return row.tokens[: row.prompt_length - 1].tobytes()


def prompt_owners(rows: Sequence[TrainRow], part: MicroBatch) -> list[int] | None:
    """Returns for each row of a micro-batch the first with its prompt; None if all differ."""
    firsts: dict[bytes | int, int] = {}
    owners = [
        firsts.setdefault(shareable(rows[number]) or index, index)
        for index, number in enumerate(part)
    ]
    return owners if len(firsts) < len(owners) else None


def _num_computed(rows: Sequence[TrainRow], numbers: Sequence[int]) -> int:
    """Returns the number of tokens with each prompt once, but for its last token."""
    prompts = {shareable(rows[number]): rows[number].prompt_length - 1 for number in numbers}
    return sum(rows[number].response_length + 1 for number in numbers) + sum(prompts.values())


def packed_parts(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], max_tokens: int
) -> list[MicroBatch]:
    """Groups units into as few micro-batches of equal weight as the limit allows.

    A unit longer than that is on its own.
    """
    alone = [tuple(unit) for unit in units if _num_tokens(rows, unit) > max_tokens]
    rest = [unit for unit in units if _num_tokens(rows, unit) <= max_tokens]
    sizes = [_num_tokens(rows, unit) for unit in rest]
    num_alone = sum(2 * size > max_tokens for size in sizes)  # no two of them fit together
    for num_parts in range(max(1, num_alone, -(-sum(sizes) // max_tokens)), len(rest)):
        parts = balanced_parts(rows, rest, num_parts)
        if _fit(rows, parts, max_tokens):
            return [*alone, *parts]
    return [*alone, *(tuple(unit) for unit in rest)]


def _fit(rows: Sequence[TrainRow], parts: Sequence[MicroBatch], max_tokens: int) -> bool:
    return all(_num_tokens(rows, part) <= max_tokens for part in parts)


def balanced_parts(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], num_parts: int
) -> list[MicroBatch]:
    """Groups units into `num_parts` micro-batches with similar numbers of tokens."""
    shares = deal_evenly(units, lambda unit: _num_tokens(rows, unit), num_parts)
    return [tuple(chain.from_iterable(share)) for share in shares if share]


def consecutive_parts(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], max_tokens: int
) -> list[MicroBatch]:
    """Groups neighbours until a micro-batch is full of tokens."""
    parts: list[list[int]] = []
    for unit in units:
        grown = [*parts[-1], *unit] if parts else []
        if grown and _num_tokens(rows, grown) <= max_tokens:
            parts[-1] = grown
        else:
            parts.append(list(unit))
    return list(parts)


def parts_of_rows(units: Sequence[RowUnit], num_rows: int) -> list[MicroBatch]:
    """Groups neighbours into micro-batches of `num_rows` rows; a pair counts as two."""
    parts: list[list[int]] = []
    for unit in units:
        if parts and len(parts[-1]) + len(unit) <= num_rows:
            parts[-1].extend(unit)
        else:
            parts.append(list(unit))
    return list(parts)


def computed_tokens(
    rows: Sequence[TrainRow], part: MicroBatch, *, packed: bool, num_sharing: int = 1
) -> int:
    """Returns the tokens that the model computes for a micro-batch, padding included.

    Ranks that share a packed row have parts of equal length.
    """
    if packed or not len(part):
        return -(-_num_tokens(rows, part) // num_sharing) * num_sharing
    return len(part) * max(rows[number].size for number in part)


def _num_tokens(rows: Sequence[TrainRow], numbers: Sequence[int]) -> int:
    return sum(rows[number].size for number in numbers)


def micro_batches(
    rows: Sequence[TrainRow], units: Sequence[RowUnit], max_tokens: int, *, keep_order: bool = False
) -> list[MicroBatch]:
    """Groups units of similar length, so that a padded micro-batch has at most `max_tokens` tokens.

    A unit longer than that is on its own. With `keep_order` neighbours stay neighbours.
    """

    def longest(part: MicroBatch) -> int:
        return max(rows[number].size for number in part)

    parts: list[list[int]] = []
    ordered = units if keep_order else sorted(units, key=lambda unit: (longest(unit), unit))
    for unit in ordered:
        grown = [*parts[-1], *unit] if parts else []
        if grown and len(grown) * longest(grown) <= max_tokens:
            parts[-1] = grown
        else:
            parts.append(list(unit))
    return list(parts)


def work_metrics(
    rows: Sequence[TrainRow],
    parts: Sequence[MicroBatch],
    ranks: Ranks,
    *,
    packed: bool,
    shares_prompts: bool = False,
) -> Metrics:
    """Measures a pass over this rank's micro-batches, as metrics of all ranks. Collective."""
    own = sum(_num_tokens(rows, part) for part in parts)
    needed = sum(_num_computed(rows, part) for part in parts) if shares_prompts else own
    computed = sum(
        computed_tokens(rows, part, packed=packed, num_sharing=ranks.num_sharing) for part in parts
    )
    counted, all_computed, all_needed = ranks.all_reduce_sum([own, computed, needed])
    busiest = ranks.all_reduce_max(needed)
    return {
        "perf/busiest_rank": busiest * ranks.num_shares / all_needed if all_needed else 1.0,
        "perf/padding_share": 1 - counted / all_computed if all_computed else 0.0,
        "perf/shared_prompts": 1 - all_needed / counted if counted else 0.0,
        "perf/num_micro_batches": float(len(parts)),
    }


class OutputGatherer:
    """Collects the outputs of one batch.

    gatherer = OutputGatherer(layout, ranks)
    gatherer.add_micro_batch("values", part, values_NC)
    values_BT = gatherer.reduce("values")
    """

    def __init__(self, layout: ResponseLayout, ranks: Ranks) -> None:
        self._layout = layout
        self._ranks = ranks
        self._outputs: dict[str, FloatMatrix] = {}

    def add_micro_batch(self, name: str, part: MicroBatch, values_NC: FloatMatrix) -> None:
        """Adds the output of one of this rank's micro-batches."""
        matrix_BT = self._outputs.setdefault(name, self._layout.zeros())
        self._layout.scatter_part(values_NC, part, into=matrix_BT)

    def reduce(self, name: str) -> FloatMatrix:
        """Returns the output over all ranks; 0 for rows that were in no micro-batch. Collective."""
        return self._ranks.all_reduce_matrix(self._outputs.pop(name, self._layout.zeros()))
