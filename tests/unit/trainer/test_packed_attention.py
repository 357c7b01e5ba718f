"""Attention over packed rows: its calls, its refusals, and the layout of rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from services.trainer.backend.packed_attention import (
    RUNS_ARGUMENT,
    PackedRows,
    RowExtents,
    attend,
    register,
    runs_of,
)
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


def test_rows_are_laid_out_shortest_first_and_spread_back() -> None:
    tokens_NL = torch.tensor([[11, 12, 13, 14], [21, 22, 0, 0], [31, 32, 33, 0]])
    extents = RowExtents(
        lengths_N=torch.tensor([4, 2, 3]),
        prompt_lengths_N=torch.tensor([2, 1, 1]),
        first_token=1,
        num_columns=3,
    )
    packed = PackedRows.from_padded(tokens_NL, extents)
    assert packed.tokens_1T.tolist() == [[21, 22, 31, 32, 33, 11, 12, 13, 14]]
    assert packed.positions_1T.tolist() == [[0, 1, 0, 1, 2, 0, 1, 2, 3]]
    assert packed.labels_S.tolist() == [22, 32, 33, 13, 14]
    assert packed.tokens_1T[0, packed.predicting_S].tolist() == [21, 31, 32, 12, 13]
    spread = packed.spread(packed.labels_S.float())
    assert spread.tolist() == [[0, 13, 14], [22, 0, 0], [32, 33, 0]]
