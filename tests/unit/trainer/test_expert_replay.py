"""The experts that an engine chose are chosen again in training, in the pass back too."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    FlexOlmoConfig,
    MixtralConfig,
    OlmoeConfig,
    PretrainedConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from services.trainer.backend.expert_replay import ExpertReplay
from trinity.config.checks.model import REPLAYABLE
from trinity.errors import UserError

SIZES = {
    "vocab_size": 24,
    "hidden_size": 32,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts": 5,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}
KINDS: dict[str, Callable[..., PretrainedConfig]] = {
    "qwen3_moe": Qwen3MoeConfig,
    "qwen2_moe": Qwen2MoeConfig,
    "mixtral": MixtralConfig,
    "olmoe": OlmoeConfig,
    "flex_olmo": FlexOlmoConfig,
}
TOKENS = torch.arange(1, 15)[None]


def model_of(kind: str = "qwen3_moe", **changes: object) -> torch.nn.Module:
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(KINDS[kind](**{**SIZES, **changes}))
    return model.eval()


def random_routes(num_layers: int = 3, num_tokens: int = 14, seed: int = 0) -> torch.Tensor:
    """Two different experts of five for each token and layer, plus 1."""
    generator = np.random.default_rng(seed)
    chosen = [
        [generator.permutation(5)[:2] + 1 for _ in range(num_layers)] for _ in range(num_tokens)
    ]
    return torch.tensor(np.array(chosen), dtype=torch.int16)


def chosen_in(model: torch.nn.Module, tokens: torch.Tensor = TOKENS) -> tuple[torch.Tensor, ...]:
    """Runs the model; returns its logits, and what each gate chose, [T, layers, k] plus 1."""
    found: list[torch.Tensor] = []
    gates = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    handles = [
        gate.register_forward_hook(lambda _m, _i, output: found.append(output[2] + 1))
        for gate in gates
    ]
    logits = model(input_ids=tokens, use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    return logits, torch.stack(found, 1)


def test_the_kinds_that_may_record_are_those_that_are_tried_here() -> None:
    assert set(KINDS) == REPLAYABLE


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_gate_chooses_what_is_recorded(kind: str) -> None:
    model = model_of(kind)
    plain, own = chosen_in(model)
    replay = ExpertReplay(model)
    replay.routes_TLk = random_routes()
    forced, chosen = chosen_in(model)
    assert torch.equal(chosen, random_routes().long())
    assert not torch.allclose(plain, forced, atol=1e-3)
    replay.routes_TLk = own.to(torch.int16)
    same, _ = chosen_in(model)
    torch.testing.assert_close(same, plain, rtol=1e-5, atol=1e-5)
    replay.routes_TLk = None
    untouched, _ = chosen_in(model)
    assert torch.equal(untouched, plain)


def test_tokens_without_a_record_keep_the_choice_of_the_gate() -> None:
    model = model_of()
    replay = ExpertReplay(model)
    routes = random_routes()
    routes[:7] = 0
    replay.routes_TLk = torch.zeros_like(routes)
    _, own = chosen_in(model)
    replay.routes_TLk = routes
    _, chosen = chosen_in(model)
    assert torch.equal(chosen[:7], own[:7]), "tokens before do not see those after"
    assert torch.equal(chosen[7:], routes[7:].long())


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    logits = model(input_ids=TOKENS, use_cache=False).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1], TOKENS[0, 1:]).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_layers_that_are_computed_again_choose_alike() -> None:
    model = model_of().train()
    replay = ExpertReplay(model)
    plain = gradients(model)
    replay.routes_TLk = random_routes()
    kept = gradients(model)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = gradients(model)
    assert kept.keys() == again.keys()
    for name, gradient in kept.items():
        torch.testing.assert_close(again[name], gradient, msg=name)
    gate = "model.layers.0.mlp.gate.weight"
    assert kept[gate].any(), "the gate learns by the weights of the experts that are replayed"
    assert not torch.allclose(kept[gate], plain[gate], atol=1e-4), "the control"


def test_a_record_of_all_layers_is_read_at_those_with_experts() -> None:
    model = model_of(mlp_only_layers=[1])
    replay = ExpertReplay(model)
    assert replay.num_gates == 2
    replay.routes_TLk = random_routes()
    _, chosen = chosen_in(model)
    assert torch.equal(chosen, random_routes()[:, [0, 2]].long())


@pytest.mark.parametrize(
    ("routes", "said"),
    [
        (random_routes(num_layers=4), "experts of 4 layers are recorded, and the model has 3"),
        (random_routes() + 3, "they are another model's"),
        (random_routes()[..., :1], "they are another model's"),
    ],
)
def test_a_record_of_another_model_is_refused(routes: torch.Tensor, said: str) -> None:
    model = model_of()
    replay = ExpertReplay(model)
    replay.routes_TLk = routes
    with pytest.raises(UserError, match=said):
        chosen_in(model)


def test_a_gate_with_weights_of_its_own_is_refused() -> None:
    model = model_of()
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(lambda _m, _i, out: (out[0], out[1] * 0.5, out[2]))
    replay = ExpertReplay(model)
    replay.routes_TLk = random_routes()
    with pytest.raises(UserError, match="weights them in a way that is not supported"):
        chosen_in(model)


def test_a_dense_model_has_nothing_to_replay() -> None:
    assert ExpertReplay(torch.nn.Linear(2, 2)).num_gates == 0
