"""Each term of the estimate is what its formula gives by hand."""

from dataclasses import replace

import pytest

from trinity.config.schema.model import LoRAConfig
from trinity.config.sizing.memory import (
    GIB,
    EngineSplit,
    ResidentState,
    TrainingSettings,
    cache_room,
    critic_terms,
    engine_weights,
    kv_bytes_per_token,
    peak_bytes,
    policy_terms,
    reference_terms,
)
from trinity.config.sizing.model_shape import Experts, ModelShape, count_adapter, count_parameters
from trinity.config.sizing.stage_sizes import (
    RankMemory,
)

# H 8, L 2, I 16, V 100, 2 heads of 4, 1 for keys: a layer has 2 x 8 x 8 + 2 x 8 x 4 = 192 of
# attention, 3 x 8 x 16 = 384 of feed-forward and 16 of norms, that is 592
SHAPE = ModelShape(
    family="llama",
    is_known=True,
    hidden=8,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    feed_forward=16,
    vocabulary=100,
    is_tied=False,
)
STATE = ("weights", "gradients", "optimizer")
P = 800 + 2 * 592 + 8 + 800


def training(**changes: object) -> TrainingSettings:
    return TrainingSettings(**{"ranks": 2, "tokens": 10, "dtype": "bfloat16", **changes})  # type: ignore[arg-type]


def figures(**changes: object) -> dict[str, int]:
    return {term.name: term.bytes for term in policy_terms(SHAPE, training(**changes))}


def test_state_is_sharded_over_ranks_in_float32() -> None:
    found = figures()
    assert (found["weights"], found["gradients"], found["optimizer"]) == (2 * P, 2 * P, 4 * P)
    assert found["optimizer step"] == 2 * P


def test_with_an_adapter_gradients_and_moments_are_of_it_alone() -> None:
    found = {term.name: term.bytes for term in policy_terms(SHAPE, training(), 100)}
    assert (found["weights"], found["gradients"], found["optimizer"]) == (2 * (P + 100), 200, 400)
    assert found["optimizer step"] == 200


@pytest.mark.parametrize(
    ("layers", "widths"),
    [
        ({}, 16 + 12 + 12 + 16 + 3 * 24),
        ({"target_modules": "q_proj,v_proj"}, 16 + 12),
        ({"exclude_modules": "gate_proj, up_proj, down_proj"}, 16 + 12 + 12 + 16),
        ({"target_modules": r".*self_attn\.[qk]_proj"}, 16 + 12),
    ],
)
def test_an_adapter_has_two_matrices_for_each_of_its_layers(
    layers: dict[str, str], widths: int
) -> None:
    lora = LoRAConfig.model_validate({"lora_rank": 4, **layers})
    assert count_adapter(SHAPE, lora) == 4 * 2 * widths


def test_gradient_descent_has_no_moments() -> None:
    assert "optimizer" not in figures(policy=ResidentState(moments=0))


def test_what_is_offloaded_counts_while_its_role_works() -> None:
    keeping = ResidentState(offloads_parameters=True, offloads_optimizer=True)
    stays = tuple(critic_terms(SHAPE, training()))
    rests = tuple(critic_terms(SHAPE, training(critic=keeping)))
    alone = RankMemory(terms=(("critic", stays),)).total
    assert RankMemory(terms=(("critic", rests),)).total == alone
    assert RankMemory(terms=(("one", rests), ("other", rests))).total == alone
    state = sum(term.bytes for term in stays if term.name in STATE)
    assert RankMemory(terms=(("one", stays), ("other", stays))).total == alone + state


def test_state_that_is_always_in_the_hosts_memory_does_not_count() -> None:
    assert not set(STATE) & set(figures(policy=ResidentState(offloads_all=True)))


def test_two_layers_and_the_embeddings_are_whole_while_they_pass() -> None:
    assert figures()["gathered layers"] == 2 * (2 * 592 + 2 * 800)


def test_activations_without_and_with_checkpointing() -> None:
    # a token of a layer: 2 x (4 x 8 + 3 x 8 + 4 x 4 + 4 x 16) + 8 x 8 = 336 bytes
    assert figures()["activations"] == 10 * 2 * 336
    kept = figures(checkpoints_activations=True)["activations"]
    assert kept == 10 * 8 * 2 * (2 + 4) + 10 * 336


def test_sequence_parallelism_divides_the_tokens() -> None:
    assert figures(sequence_parallel=2)["activations"] == 5 * 2 * 336


@pytest.mark.parametrize(
    ("changes", "bytes_each"),
    [
        ({}, 18),
        ({"dtype": "float32"}, 20),
        ({"has_entropy": True}, 18),
    ],
)
def test_logits(changes: dict[str, object], bytes_each: int) -> None:
    assert figures(**changes)["logits"] == 10 * 100 * bytes_each


def test_logits_of_a_chunk_are_all_there_is() -> None:
    assert figures(head_tokens=4)["logits"] == 4 * 100 * 18
    assert figures(head_tokens=4000)["logits"] == 10 * 100 * 18


def test_a_pass_without_gradients_keeps_one_layer_and_its_logits() -> None:
    assert "log-prob pass" not in figures(inference_tokens=10), "training's are as large"
    found = figures(inference_tokens=40)
    assert found["log-prob pass"] == 40 * 336 + 40 * 100 * 18
    shared = figures(inference_tokens=40, sequence_parallel=2, inference_head_tokens=4)
    assert shared["log-prob pass"] == 20 * 336 + 4 * 100 * 18
    own = [term.bytes for term in reference_terms(SHAPE, training(inference_tokens=40))]
    assert own == [P, found["gathered layers"], found["log-prob pass"]]


def test_a_pass_without_gradients_and_one_with_them_do_not_meet() -> None:
    terms = policy_terms(SHAPE, training(inference_tokens=400))
    found = {term.name: term.bytes for term in terms}
    without = peak_bytes([term for term in terms if term.name not in ("activations", "logits")])
    assert peak_bytes(terms) == RankMemory(terms=(("actor", tuple(terms)),)).total == without
    state = sum(found[name] for name in STATE)
    assert without == state + found["gathered layers"] + found["log-prob pass"]


def test_a_critic_has_no_logits_and_a_reference_only_weights() -> None:
    assert "logits" not in {term.name for term in critic_terms(SHAPE, training())}
    assert [term.bytes for term in reference_terms(SHAPE, training())] == [P]


def test_a_pass_and_a_step_do_not_meet() -> None:
    found = figures()
    state = found["weights"] + found["gradients"] + found["optimizer"]
    passing = found["gathered layers"] + found["activations"] + found["logits"]
    assert peak_bytes(policy_terms(SHAPE, training())) == state + max(
        passing, found["optimizer step"]
    )


def test_cache_of_a_token_is_shared_by_heads() -> None:
    assert kv_bytes_per_token(SHAPE, 1, "bfloat16") == 2 * 2 * 1 * 4 * 2
    assert kv_bytes_per_token(SHAPE, 4, "bfloat16") == 2 * 2 * 1 * 4 * 2  # a head is not cut


def test_the_cache_has_what_weights_leave() -> None:
    room = cache_room(
        SHAPE, split=EngineSplit(), dtype="bfloat16", gpu_bytes=4 * GIB, utilization=0.5
    )
    assert room == 2 * GIB - 2 * P - int(1.5 * GIB)


def test_layers_of_an_engine_are_dealt_out_with_their_cache() -> None:
    assert kv_bytes_per_token(SHAPE, 1, "bfloat16", 2) == 2 * 1 * 1 * 4 * 2
    assert engine_weights(SHAPE, EngineSplit(pipeline=2), "bfloat16") == 2 * (P // 2)


def test_copies_of_the_weights_share_the_experts_alone() -> None:
    assert engine_weights(SHAPE, EngineSplit(data=4), "bfloat16") == 2 * P
    mixture = replace(SHAPE, experts=Experts(num=8, per_token=2, width=4), sparse_layers=2)
    experts = 2 * 8 * 3 * 8 * 4
    dense = count_parameters(mixture) - experts
    split = EngineSplit(tensor=2, data=4)
    assert engine_weights(mixture, split, "bfloat16") == 2 * (dense // 2 + experts // 8)
