"""A mixture of experts trains with the experts that the engine chose for each token."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from services.trainer.types import TrainBatch, TrainRow
from tests.integration.trainer.learners import Arrays, assert_close, gradients_of, stepped
from tests.unit.trainer.builders import (
    make_plan,
    random_batch,
    save_tiny_mixture,
    with_random_experts,
)

if TYPE_CHECKING:
    from services.trainer.collectives import Ranks
    from services.trainer.learner.learner import Learner
    from trinity.algorithm.token_advantage.token_batch import FloatMatrix

GRPO = {"algorithm_type": "grpo", "repeat_times": 8}
PLAIN = random_batch(9, seed=4)
RECORDED = with_random_experts(PLAIN, every=2)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_mixture(tmp_path_factory.mktemp("mixture") / "model")


BALANCED = {**GRPO, "router_aux_loss_coef": 0.5, "router_z_loss_coef": 0.1}


def build(mixture: Path, ranks: "Ranks", **trainer: object) -> "Learner":
    return build_with(GRPO, mixture, ranks, trainer)


def build_with(
    algorithm: Mapping[str, object], mixture: Path, ranks: "Ranks", trainer: Mapping[str, object]
) -> "Learner":
    from services.trainer.learner.learner import Learner

    plan = make_plan(mixture, algorithm, trainer)
    return Learner(plan=plan, model_directory=mixture, ranks=ranks)


def logprobs_of(learner: "Learner", batch: TrainBatch) -> "FloatMatrix":
    from services.trainer.learner.prepared_batch import PreparedBatch

    outputs = learner._roles.actor.compute_outputs(PreparedBatch.from_batch(batch), ["logprobs"])
    return outputs["logprobs"]


def alone(mixture: Path, row: TrainRow) -> "FloatMatrix":
    """Log-probabilities of transformers, whose gates are told what to choose."""
    import torch
    from transformers import AutoModelForCausalLM

    from services.trainer.backend.expert_replay import ExpertReplay

    model = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    if row.routed_experts is not None:
        routes = torch.zeros(row.length, *row.routed_experts.shape[1:], dtype=torch.int16)
        routes[row.prompt_length - 1 : -1] = torch.from_numpy(row.routed_experts)
        ExpertReplay(model).routes_TLk = routes
    tokens = torch.from_numpy(row.tokens.astype(np.int64))
    with torch.no_grad():
        logprobs = model(input_ids=tokens[None]).logits[0].log_softmax(-1)
    chosen = logprobs[:-1].gather(-1, tokens[1:, None])[row.prompt_length - 1 :, 0]
    found: FloatMatrix = chosen.double().numpy()
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_log_probabilities_are_those_of_the_recorded_experts(
    ranks: "Ranks", mixture: Path, packed: bool
) -> None:
    learner = build(mixture, ranks, use_remove_padding=packed, max_token_len_per_gpu=80)
    found_BT, plain_BT = logprobs_of(learner, RECORDED), logprobs_of(learner, PLAIN)
    for number, row in enumerate(RECORDED.rows):
        trained = np.flatnonzero(row.mask)
        found = found_BT[number][trained]
        np.testing.assert_allclose(found, alone(mixture, row)[trained], atol=3e-5)
        is_recorded = row.routed_experts is not None
        differs = bool(np.abs(found - plain_BT[number][trained]).max() > 1e-2)
        assert differs is is_recorded, "the control: rows without a record are as they were"


def test_gradients_are_those_of_the_recorded_experts_however_they_are_computed(
    ranks: "Ranks", mixture: Path
) -> None:
    ways: list[Mapping[str, object]] = [
        {},
        {"use_remove_padding": False},
        {"enable_gradient_checkpointing": True, "use_fused_kernels": True},
        {"max_token_len_per_gpu": 64},
    ]
    first, *others = [gradients_of(build(mixture, ranks, **way), RECORDED) for way in ways]
    for other in others:
        assert_close(first, other)
    plain: Arrays = gradients_of(build(mixture, ranks), PLAIN)
    with pytest.raises(AssertionError, match=r"Not equal|not equal"):
        assert_close(first, plain)


def test_gates_are_balanced_alike_however_a_step_is_computed(ranks: "Ranks", mixture: Path) -> None:
    ways: list[Mapping[str, object]] = [
        {},
        {"use_remove_padding": False},
        {"enable_gradient_checkpointing": True},
        {"max_token_len_per_gpu": 64},
    ]
    learners = [build_with(BALANCED, mixture, ranks, way) for way in ways]
    first, *others = [gradients_of(learner, RECORDED) for learner in learners]
    for other in others:
        assert_close(first, other)
    plain = gradients_of(build(mixture, ranks), RECORDED)
    with pytest.raises(AssertionError, match=r"Not equal|not equal"):
        assert_close(first, plain)


def test_a_balanced_mixture_becomes_more_even(ranks: "Ranks", mixture: Path) -> None:
    learner = build_with(BALANCED, mixture, ranks, {})
    steps = [learner.train_step(PLAIN, 1e-2).metrics for _ in range(6)]
    assert steps[0]["actor/router_aux_loss"] >= 1.0
    assert steps[-1]["actor/router_aux_loss"] < steps[0]["actor/router_aux_loss"]
    assert steps[-1]["actor/router_z_loss"] < steps[0]["actor/router_z_loss"]


def test_a_reference_below_an_adapter_chooses_by_itself(ranks: "Ranks", mixture: Path) -> None:
    from services.trainer.learner.learner import Learner
    from services.trainer.learner.prepared_batch import PreparedBatch

    lora = {"lora_configs": [{"lora_rank": 2, "target_modules": "q_proj"}]}
    plan = make_plan(mixture, {**GRPO, "kl_loss_fn": "k2"}, {}, lora)
    learner = Learner(plan=plan, model_directory=mixture, ranks=ranks)
    reference = learner._roles.reference
    assert reference is not None
    recorded, plain = (
        reference.logprobs(PreparedBatch.from_batch(batch)) for batch in (RECORDED, PLAIN)
    )
    np.testing.assert_array_equal(recorded, plain)
    assert np.abs(logprobs_of(learner, RECORDED) - plain).max() > 1e-2, "the control"


def test_a_mixture_learns_and_is_published_by_the_names_of_its_experts(
    ranks: "Ranks", mixture: Path
) -> None:
    learner = build(mixture, ranks)
    before = {name: tensor.clone() for name, tensor in learner.weights()}
    stepped(learner, RECORDED)
    after = dict(learner.weights())
    gate, expert = "model.layers.0.mlp.gate.weight", "model.layers.2.mlp.experts.4.up_proj.weight"
    assert {gate, expert} <= after.keys()
    assert all(bool((before[name] != after[name]).any()) for name in (gate, expert))
