"""Attention over packed rows: its calls, its refusals, and the layout of rows."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from services.trainer.backend.packed_attention import (
    RUNS_ARGUMENT,
    PackedRows,
    RowExtents,
    Runs,
    _varlen_kernel,
    attend,
    register,
    runs_of,
)
from services.trainer.backend.sequence_shards import SequenceShards
from tests.unit.trainer.model_kinds import settings_of
from trinity.config.plan.arithmetic import PACKED_ATTENTION, packing_obstacle
from trinity.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.*")

LENGTHS = [5, 9, 9, 21]


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    register()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


def twins(kind: str, settings: Mapping[str, object]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model that packs rows, and the same one with the attention that drops nothing."""
    packing, alone = (
        AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[kind](**settings), attn_implementation=name
        ).eval()
        for name in (PACKED_ATTENTION, "eager")
    )
    assert packing.config._attn_implementation == PACKED_ATTENTION
    alone.load_state_dict(packing.state_dict())
    return packing, alone


def _difference(packing: PreTrainedModel, alone: PreTrainedModel) -> float:
    tokens = torch.randint(3, 99, (1, sum(LENGTHS)))
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    packed = packing(
        input_ids=tokens,
        position_ids=places,
        use_cache=False,
        **{RUNS_ARGUMENT: runs_of(LENGTHS)},
    ).logits
    rows = [alone(input_ids=row, use_cache=False).logits for row in tokens.split(LENGTHS, 1)]
    expected = torch.cat(rows, 1)
    return float((packed - expected).abs().max() / expected.abs().max())


def test_a_window_that_attention_is_not_told_of_is_found() -> None:
    """With a window such a model is not packed, and this is why."""
    windowed = settings_of("phimoe", {"sliding_window": 8})
    keys: Any = {"model_type": "phimoe", **windowed}
    assert "window" in str(packing_obstacle(keys))
    assert _difference(*twins("phimoe", windowed)) > 1e-2


def test_neighbours_of_equal_length_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_of(LENGTHS) == ((5, 1), (9, 2), (21, 1))
    shapes = []
    sdpa = nn.functional.scaled_dot_product_attention

    def watched(query: torch.Tensor, *args: object, **options: object) -> torch.Tensor:
        assert options["attn_mask"] is None, "no mask of all tokens by all tokens"
        shapes.append(tuple(query.shape))
        return sdpa(query, *args, **options)

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", watched)
    query, key = torch.randn(1, 4, sum(LENGTHS), 16), torch.randn(1, 2, sum(LENGTHS), 16)
    attend(nn.Module(), query, key, key, None, packed_runs=runs_of(LENGTHS))
    assert shapes == [(1, 4, 5, 16), (2, 4, 9, 16), (1, 4, 21, 16)]


@pytest.mark.parametrize(
    "options", [{}, {RUNS_ARGUMENT: ((5, 1),), "position_bias": 1.0}, {RUNS_ARGUMENT: None}]
)
def test_what_it_cannot_compute_is_refused(options: dict[str, Any]) -> None:
    tensor = torch.randn(1, 2, 5, 16)
    with pytest.raises(UserError, match="use_remove_padding: false"):
        attend(nn.Module(), tensor, tensor, tensor, None, **options)


def three_rows() -> PackedRows:
    tokens_NL = torch.tensor([[11, 12, 13, 14], [21, 22, 0, 0], [31, 32, 33, 0]])
    extents = RowExtents(
        lengths_N=torch.tensor([4, 2, 3]),
        prompt_lengths_N=torch.tensor([2, 1, 1]),
        first_token=1,
        num_columns=3,
    )
    return PackedRows.from_padded(tokens_NL, extents)


def test_rows_are_laid_out_shortest_first_and_spread_back() -> None:
    packed = three_rows()
    assert packed.tokens_1T.tolist() == [[21, 22, 31, 32, 33, 11, 12, 13, 14]]
    assert packed.positions_1T.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2, 3]]
    assert packed.labels_S.tolist() == [22, 32, 33, 13, 14]
    assert packed.tokens_1T[0, packed.predicting_S].tolist() == [21, 31, 32, 12, 13]
    spread = packed.spread(packed.labels_S.float())
    assert spread.tolist() == [[0, 13, 14], [22, 0, 0], [32, 33, 0]]


def test_tokens_that_fill_a_row_up_for_its_ranks_are_a_sequence_of_no_row() -> None:
    packed = three_rows().padded_to_multiple(4)
    assert packed.tokens_1T.tolist() == [[21, 22, 31, 32, 33, 11, 12, 13, 14, 0, 0, 0]]
    assert packed.positions_1T.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2]]
    assert packed.runs == ((2, 1), (3, 1), (4, 1), (3, 1))
    assert packed.row_of_each().tolist() == [1, 1, 2, 2, 2, 0, 0, 0, 0, -1, -1, -1]
    values_NL = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]])
    assert packed.lay(values_NL).tolist() == [5, 6, 7, 8, 9, 1, 2, 3, 4, 0, 0, 0]
    assert three_rows().padded_to_multiple(3).tokens_1T.shape == (1, 9), "nothing is missing"


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_parts_of_ranks_are_the_row_with_each_answer_where_its_token_is_predicted(
    num_ranks: int,
) -> None:
    packed = three_rows().padded_to_multiple(num_ranks)
    group: Any = None
    shards = [SequenceShards(group, num_ranks, index) for index in range(num_ranks)]
    parts = [ranks.part_of(packed) for ranks in shards]
    for name in ("tokens", "positions"):
        joined = torch.cat([getattr(part, f"{name}_1t") for part in parts], 1)
        assert torch.equal(joined, getattr(packed, f"{name}_1T"))
    for name in ("labels", "rows"):
        joined = torch.cat([getattr(part, f"{name}_s") for part in parts])
        assert torch.equal(joined, getattr(packed, f"{name}_S"))
    before = torch.cat([part.tokens_1t[0, part.predicting_s] for part in parts])
    assert before.tolist() == [21, 31, 32, 12, 13]
    counts = tuple(len(part.labels_s) for part in parts)
    assert [part.counts for part in parts] == [counts] * num_ranks
    assert [ranks.own_heads(torch.arange(12)).tolist() for ranks in shards] == [
        list(range(index * 12 // num_ranks, (index + 1) * 12 // num_ranks))
        for index in range(num_ranks)
    ]


def written_out(
    tensors: Sequence[torch.Tensor], begins: Sequence[int], scale: float, seen: Sequence[int]
) -> torch.Tensor:
    """Attention token by token and head by head; `seen` are tokens to the left and right."""
    query, key, value = tensors
    shares, output = query.shape[1] // key.shape[1], torch.zeros_like(query)
    for begin, end in pairwise(begins):
        for place in range(begin, end):
            left = begin if seen[0] < 0 else max(begin, place - seen[0])
            window = slice(left, end if seen[1] < 0 else min(end, place + seen[1] + 1))
            for head in range(query.shape[1]):
                scores = key[window, head // shares] @ query[place, head] * scale
                output[place, head] = scores.softmax(0) @ value[window, head // shares]
    return output


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("knows_groups", [True, False])
def test_torchs_kernel_is_told_the_rows_the_scale_and_the_window(
    monkeypatch: pytest.MonkeyPatch, window: int | None, knows_groups: bool
) -> None:
    """It needs a GPU: here another one computes what its documentation says of its arguments."""

    def documented(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        assert enable_gqa or query.shape[1] == key.shape[1]
        assert max_q == max_k == 21
        assert torch.equal(cu_seq_q, cu_seq_k)
        assert scale is not None
        return written_out((query, key, value), cu_seq_q.tolist(), scale, window_size)

    def older(*arguments: Any, scale: float | None, window_size: tuple[int, int]) -> torch.Tensor:
        return documented(*arguments, scale=scale, window_size=window_size)

    name = "torch.nn.attention.varlen.varlen_attn"
    monkeypatch.setattr(name, documented if knows_groups else older)
    kernel = _varlen_kernel.__wrapped__()
    assert kernel is not None
    tensors = [torch.randn(sum(LENGTHS), heads, 8) for heads in (4, 2, 2)]
    runs: Runs = runs_of(LENGTHS)
    left = -1 if window is None else window - 1
    expected = written_out(tensors, [0, 5, 14, 23, 44], 0.3, (left, 0))
    torch.testing.assert_close(kernel(tensors, runs, 0.3, window), expected)
    query, key, value = (tensor.transpose(0, 1)[None] for tensor in tensors)
    found, _ = attend(
        nn.Module(), query, key, value, None, 0.3, sliding_window=window, packed_runs=runs
    )
    torch.testing.assert_close(found[0], expected)
