"""A prompt that several rows of a micro-batch have is computed once, and seen by each of them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.trainer.backend.packed_attention import (
    RUNS_ARGUMENT,
    SHARED_ARGUMENT,
    PackedRows,
    RowExtents,
    register,
)
from services.trainer.learner.microbatches import deal_prompts, prompt_owners, together
from services.trainer.learner.prepared_batch import row_units
from services.trainer.types import TrainRow
from tests.unit.trainer.builders import data_row, make_plan, random_pairs
from tests.unit.trainer.model_kinds import settings_of
from tests.unit.trainer.test_packed_attention import twins
from tests.unit.trainer.test_parts import everything, numbers_of, splitter_of
from trinity.config.plan.sizes import plans_shared_prompts
from trinity.config.plan.stage_plan import StagePlan

pytestmark = pytest.mark.filterwarnings("ignore:.*")

PROMPT_LENGTHS = [4, 9, 4, 9, 4, 11, 1]
OWNERS = [0, 1, 0, 1, 0, 5, 6]
ANSWER_LENGTHS = [3, 5, 8, 2, 3, 4, 6]


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    register()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def rows_of_prompts() -> list[torch.Tensor]:
    prompts = [torch.randint(3, 99, (length,)) for length in PROMPT_LENGTHS]
    return [
        torch.cat([prompts[owner], torch.randint(3, 99, (length,))])
        for owner, length in zip(OWNERS, ANSWER_LENGTHS, strict=True)
    ]


def laid(rows: list[torch.Tensor], owners: list[int] | None) -> PackedRows:
    lengths = torch.tensor([len(row) for row in rows])
    extents = RowExtents(
        lengths_N=lengths,
        prompt_lengths_N=torch.tensor(PROMPT_LENGTHS),
        first_token=1,
        num_columns=int(lengths.max()) - 1,
        prompt_owners_N=None if owners is None else torch.tensor(owners),
    )
    return PackedRows.from_padded(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), extents)


def test_prompts_lie_once_and_outputs_keep_their_order() -> None:
    rows = rows_of_prompts()
    shared, whole = laid(rows, OWNERS), laid(rows, None)
    own = len(rows) + sum(ANSWER_LENGTHS)
    once = sum(length - 1 for index, length in enumerate(PROMPT_LENGTHS) if OWNERS[index] == index)
    assert shared.tokens_1T.shape == (1, once + own)
    for name in ("labels_S", "rows_S", "columns_S"):
        assert torch.equal(getattr(shared, name), getattr(whole, name))
    assert shared.runs == whole.runs
    before = [packed.tokens_1T[0, packed.predicting_S] for packed in (shared, whole)]
    assert torch.equal(*before)


def test_each_row_predicts_from_a_token_of_its_own() -> None:
    """Else heads would add gradients of many rows up in half precision."""
    places = laid(rows_of_prompts(), OWNERS).predicting_S
    assert len(places.unique()) == len(places)


def test_what_many_rows_add_to_their_prompt_is_not_lost_in_half_precision() -> None:
    rows = [torch.tensor([5, 6, 7, 8])] * 1024
    extents = RowExtents(
        lengths_N=torch.full((1024,), 4),
        prompt_lengths_N=torch.full((1024,), 2),
        first_token=2,
        num_columns=2,
        prompt_owners_N=torch.zeros(1024, dtype=torch.int64),
    )
    shared = PackedRows.from_padded(torch.stack(rows), extents).shared
    assert shared is not None
    heads = torch.zeros(len(shared.firsts_T), 1, 1, dtype=torch.bfloat16, requires_grad=True)
    (found,) = torch.autograd.grad(shared.repeat(heads).sum(), heads)
    assert found[0].item() == 1024.0


def test_heads_come_back_as_they_went_and_gradients_are_sums_over_the_rows() -> None:
    shared = laid(rows_of_prompts(), OWNERS).shared
    assert shared is not None
    heads = torch.randn(len(shared.firsts_T), 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.equal(shared.pick(shared.repeat(heads)), heads)
    weights = torch.randn(len(shared.places_U), 2, 3, dtype=torch.float64)
    (found,) = torch.autograd.grad((shared.repeat(heads) * weights).sum(), heads)
    (expected,) = torch.autograd.grad((heads[shared.places_U] * weights).sum(), heads)
    torch.testing.assert_close(found, expected)
    whole = torch.randn_like(weights, requires_grad=True)
    assert torch.autograd.gradcheck(shared.pick, (whole,))


def test_a_row_that_gets_the_prompt_of_another_is_found() -> None:
    """The control: the comparison sees whose prompt a row has."""
    assert difference("llama", [0, 1, 2, 1, 4, 5, 6]) < 1e-5
    assert difference("llama", [0, 1, 0, 3, 0, 1, 6]) > 1e-2


def difference(kind: str, owners: list[int]) -> float:
    packing, alone = twins(kind, settings_of(kind))
    rows = rows_of_prompts()
    packed = laid(rows, owners)
    with torch.no_grad():
        found_SV = packing(
            input_ids=packed.tokens_1T,
            position_ids=packed.positions_1T,
            use_cache=False,
            **{RUNS_ARGUMENT: packed.runs, SHARED_ARGUMENT: packed.shared},
        ).logits[0, packed.predicting_S]
        logits = [alone(input_ids=row[None], use_cache=False).logits[0] for row in rows]
    expected_SV = torch.stack(
        [
            logits[number][column]
            for number, column in zip(packed.rows_S, packed.columns_S, strict=True)
        ]
    )
    return float((found_SV - expected_SV).abs().max() / expected_SV.abs().max())


def group_rows(num_groups: int, size: int) -> list[TrainRow]:
    """Rows in no order, whose prompts are longer than what follows."""
    generator = np.random.default_rng(3)
    prompts = [
        generator.integers(2, 40, int(generator.integers(10, 16))) for _ in range(num_groups)
    ]
    order = generator.permutation(np.repeat(np.arange(num_groups), size))
    return [
        data_row(position, prompts[group], generator.integers(2, 40, int(generator.integers(1, 6))))
        for position, group in enumerate(order)
    ]


def test_rows_of_a_prompt_are_in_one_micro_batch_as_far_as_they_fit() -> None:
    rows = group_rows(6, 4)
    joined = together(rows, row_units(rows), max_tokens=80)
    assert numbers_of(joined) == list(range(24))
    assert len(joined) == 6
    assert all(len({prompt(rows, number) for number in unit}) == 1 for unit in joined)
    halves = together(rows, row_units(rows), max_tokens=40)
    assert all(sum(rows[number].length for number in unit) <= 40 for unit in halves)
    cut = splitter_of().parts(rows, everything(rows), packed=True, shares_prompts=True)
    parts = [part for part, _ in cut]
    assert numbers_of(parts) == list(range(24))
    assert sum(len({prompt(rows, number) for number in part}) for part in parts) == len(
        together(rows, row_units(rows), max_tokens=64)
    )


def prompt(rows: list[TrainRow], number: int) -> tuple[int, ...]:
    return tuple(rows[number].tokens[: rows[number].prompt_length].tolist())


def test_the_first_row_of_each_prompt_owns_it() -> None:
    rows = group_rows(2, 3)
    owners = prompt_owners(rows, range(6))
    assert owners is not None
    assert [prompt(rows, owner) for owner in owners] == [prompt(rows, n) for n in range(6)]
    assert all(owners[owner] == owner <= number for number, owner in enumerate(owners))
    different = [
        data_row(0, np.array([5, 6]), np.array([7])),
        data_row(1, np.array([5]), np.array([6, 7])),
    ]
    assert prompt_owners(different, (0, 1)) is None


def test_prompts_of_one_token_have_nothing_to_share() -> None:
    rows = [data_row(number, np.array([5]), np.array([6, 7])) for number in range(4)]
    assert prompt_owners(rows, range(4)) is None
    assert together(rows, row_units(rows), max_tokens=100) == [[0], [1], [2], [3]]


def test_pairs_share_their_prompt() -> None:
    rows = random_pairs(3).rows
    assert prompt_owners(rows, range(6)) == [0, 0, 2, 2, 4, 4]


def test_ranks_get_whole_prompts_unless_one_of_them_would_be_busier() -> None:
    rows = group_rows(8, 4)
    shares = deal_prompts(rows, row_units(rows), 4, max_tokens=1000)
    of_shares = [{prompt(rows, n) for unit in share for n in unit} for share in shares]
    assert sum(map(len, of_shares)) == 8
    one_prompt = group_rows(1, 16)
    answers = [replace(row, prompt_length=1) for row in one_prompt]
    shares = deal_prompts(answers, row_units(answers), 4, max_tokens=1000)
    assert min(map(len, shares)) > 2


def test_micro_batches_that_are_cut_by_rows_have_no_more_of_them_on_any_rank() -> None:
    rows = group_rows(6, 4)
    for rank in range(2):
        splitter = splitter_of(rank, 2, num_rows=3)
        cut = splitter.parts(rows, everything(rows), packed=True, shares_prompts=True)
        assert [len(part) for part, _ in cut] == [3, 3, 3, 3]


def test_prompts_are_shared_without_gpus_or_where_the_user_says_so() -> None:
    def shares(plan: StagePlan) -> bool:
        return plans_shared_prompts(plan)

    def planned(**trainer: object) -> StagePlan:
        return make_plan(Path("/models/tiny"), {"algorithm_type": "grpo"}, trainer)

    def on_gpus(plan: StagePlan) -> StagePlan:
        cluster = plan.config.cluster.model_copy(update={"gpu_per_node": 2})
        return plan.model_copy(
            update={"config": plan.config.model_copy(update={"cluster": cluster})}
        )

    assert shares(planned())
    assert not shares(planned(use_prefix_grouper=False))
    assert not shares(on_gpus(planned()))
    assert shares(on_gpus(planned(use_prefix_grouper=True)))
