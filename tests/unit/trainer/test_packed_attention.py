"""Packed rows give the logits of each row alone, in the kinds of models that are said to do so."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from services.trainer.backend.packed_attention import (
    PACKED_ATTENTION,
    RUNS_ARGUMENT,
    PackedRows,
    RowExtents,
    attend,
    register,
    runs_of,
)
from trinity.config.plan.arithmetic import PACKABLE, packing_obstacle
from trinity.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore:.*")

LENGTHS = [5, 9, 9, 21]
SMALL: dict[str, object] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 99,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
EXPERTS = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
KINDS: dict[str, dict[str, object]] = {
    "llama": GROUPED,
    "qwen2": GROUPED,
    "qwen3": GROUPED,
    "qwen3_moe": {**GROUPED, **EXPERTS},
    "mistral": {**GROUPED, "sliding_window": 8},
    "gemma3_text": {**GROUPED, "sliding_window": 8},
    "phi3": {**GROUPED, "sliding_window": 8},
    "glm4": GROUPED,
    "olmo2": GROUPED,
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 99, "n_positions": 64},
    "deepseek_v3": {
        **SMALL,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 24,
    },
}
SIZES: dict[str, object] = {
    **GROUPED,
    **EXPERTS,
    "attn_logit_softcapping": None,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "n_embd": 64,
    "n_group": 1,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "sliding_window": 8,
    "topk_group": 1,
    "v_head_dim": 16,
}
"""Sizes, by the names that the kinds of models have for them."""


def settings_of(kind: str) -> dict[str, object]:
    """Returns the settings of a small model of a kind, with a window where it has one."""
    usual = CONFIG_MAPPING[kind]()
    known = {name: value for name, value in SIZES.items() if hasattr(usual, name)}
    if kind == "phimoe":
        known["sliding_window"] = None
    return KINDS.get(kind, known)


@pytest.fixture(autouse=True)
def _single_thread() -> Iterator[None]:
    register()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        yield


def difference(kind: str, settings: dict[str, object]) -> float:
    """The largest difference of packed logits from those of each row alone."""
    return _difference(*twins(kind, settings))


def twins(kind: str, settings: dict[str, object]) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A model that packs rows, and the same one with torch's attention."""
    if kind == "deepseek_v3":  # its heads have two sizes
        settings = {key: value for key, value in settings.items() if key != "head_dim"}
    packing, alone = (
        AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[kind](**settings), attn_implementation=name
        ).eval()
        for name in (PACKED_ATTENTION, "sdpa")
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


def obstacle_of(kind: str, settings: dict[str, object]) -> str | None:
    keys: Any = {"model_type": kind, **settings}
    return packing_obstacle(keys, has_flash_attention=False)


@pytest.mark.parametrize("kind", sorted(PACKABLE))
def test_packed_rows_are_computed_as_each_is_alone(kind: str) -> None:
    settings = settings_of(kind)
    assert obstacle_of(kind, settings) is None
    assert difference(kind, settings) < 1e-5


def test_a_window_that_attention_is_not_told_of_is_found() -> None:
    """The control: with a window such a model is not packed, and this is why."""
    windowed = {**settings_of("phimoe"), "sliding_window": 8}
    obstacle = obstacle_of("phimoe", windowed)
    assert obstacle is not None and "window" in obstacle
    assert difference("phimoe", windowed) > 1e-2


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
    "options", [{}, {RUNS_ARGUMENT: ((5, 1),), "softcap": 50.0}, {RUNS_ARGUMENT: None}]
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
