"""Scripts of veRL for other back ends, and the sizes that they divide ranks into."""

from pathlib import Path

import pytest

from tests.unit.verl.builders import converted, flat, from_keys, missing, value

START = "python3 -m verl.trainer.main_ppo"
ACTOR = "actor_rollout_ref.actor"


def test_megatron_however_it_is_chosen(tmp_path: Path) -> None:
    for words in (
        f"{ACTOR}.strategy=megatron",
        "model_engine=megatron",
        "--config-name='ppo_megatron_trainer.yaml'",
        "--config-path=./config --config-name ppo_megatron_trainer",
    ):
        found = converted(f"{START} {words} data.max_prompt_length=6", tmp_path)
        assert value(found, "trainer.trainer_strategy") == "fsdp2", words
        (warning,) = [line for line in found.report if "veRL trains this with Megatron" in line]
        assert "`trinity config plan`" in warning


def test_sizes_of_another_back_end_are_left_out_with_one_warning() -> None:
    megatron = f"{ACTOR}.megatron"
    found = from_keys(
        "model_engine=megatron",
        f"{megatron}.tensor_model_parallel_size=4",
        f"{megatron}.pipeline_model_parallel_size=1",
        f"{megatron}.expert_model_parallel_size=8",
        f"{megatron}.context_parallel_size=2",
        f"{megatron}.param_offload=True",
        f"{megatron}.override_transformer_config.recompute_method=uniform",
        "actor_rollout_ref.ref.megatron.tensor_model_parallel_size=4",
        f"{ACTOR}.ppo_max_token_len_per_gpu=1000",
    )
    given = flat(found.values)
    assert not any(key.startswith("trainer.megatron") for key in given)
    assert given["trainer.ulysses_sequence_parallel_size"] == 2
    assert given["trainer.max_token_len_per_gpu"] == 1000
    assert given["trainer.param_offload"] is True
    (warning,) = [line for line in found.report if "here FSDP2 does" in line]
    assert "without tensor_model_parallel_size=4, expert_model_parallel_size=8" in warning
    assert "pipeline" not in warning
    assert missing(found) == []


def test_megatrons_losses_of_gates_are_ours_where_they_act_in_verl() -> None:
    section = f"{ACTOR}.megatron.override_transformer_config"
    both = (f"{section}.moe_aux_loss_coeff=0.01", f"{section}.moe_z_loss_coeff=0.001")
    found = from_keys("model_engine=megatron", *both)
    assert value(found, "algorithm.router_z_loss_coef") == 0.001
    assert "algorithm.router_aux_loss_coef" not in flat(found.values)
    assert any("give `algorithm.router_aux_loss_coef: 0.01`" in line for line in found.report)
    typed = from_keys(*both, f"{section}.moe_router_load_balancing_type=seq_aux_loss")
    assert value(typed, "algorithm.router_aux_loss_coef") == 0.01
    assert missing(found) == [] == missing(typed)
    index = f"{section}.dsa_indexer_use_sparse_loss=True"
    assert missing(from_keys(index, f"{section}.dsa_indexer_loss_coeff=0.0")) == []
    assert any("dsa_indexer" in line for line in missing(from_keys(index)))


def test_an_engine_that_is_not_here_is_left_out() -> None:
    found = from_keys("actor_rollout_ref.rollout.name=trtllm")
    assert "explorer.rollout_model.engine_type" not in flat(found.values)
    assert any("rollout.name=trtllm" in line and "vLLM rolls out" in line for line in found.report)


@pytest.mark.parametrize(
    ("key", "name"),
    [(f"{ACTOR}.strategy=veomni", "VeOmni"), ("model_engine=torchtitan", "TorchTitan")],
)
def test_a_back_end_that_is_not_here_gives_way_to_fsdp2(key: str, name: str) -> None:
    found = from_keys(key)
    assert value(found, "trainer.trainer_strategy") == "fsdp2"
    assert any(f"veRL trains this with {name}, here FSDP2 does" in line for line in found.report)


def test_keys_of_the_back_end_are_written_under_the_names_that_act() -> None:
    found = from_keys(
        f"{ACTOR}.fsdp_config.param_offload=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.model.override_config.attention_dropout=0.1",
        "critic.fsdp.param_offload=True",
        "algorithm.adv_estimator=gae",
    )
    assert value(found, "trainer.param_offload") is True
    assert value(found, "trainer.enable_gradient_checkpointing") is True
    assert value(found, "trainer.override_config.attention_dropout") == 0.1
    assert value(found, "trainer.critic.param_offload") is True


def test_a_limit_of_tokens_is_one_of_each_gpu_as_verls_is() -> None:
    shared = f"{ACTOR}.ulysses_sequence_parallel_size=4"
    found = from_keys(f"{ACTOR}.ppo_max_token_len_per_gpu=1000", shared)
    assert value(found, "trainer.max_token_len_per_gpu") == 1000


@pytest.mark.parametrize(("gpus", "size"), [(8, 2), (8, 4), (6, 4), (3, 2)])
def test_the_ranks_that_train_divide_into_those_that_share_sequences(gpus: int, size: int) -> None:
    shared = f"{ACTOR}.ulysses_sequence_parallel_size={size}"
    one = "actor_rollout_ref.rollout.tensor_model_parallel_size=1"
    given = flat(from_keys(f"trainer.n_gpus_per_node={gpus}", shared, one).values)
    engines = given["explorer.rollout_model.engine_num"]
    assert isinstance(engines, int)
    trained = given.get("trainer.rank_num", gpus - engines)
    assert isinstance(trained, int)
    assert trained % size == 0


def test_the_ranks_that_train_divide_into_the_groups_that_share_weights() -> None:
    found = from_keys("trainer.n_gpus_per_node=32", f"{ACTOR}.fsdp_config.fsdp_size=16")
    engines = value(found, "explorer.rollout_model.engine_num")
    size = value(found, "explorer.rollout_model.tensor_parallel_size")
    assert isinstance(engines, int)
    assert isinstance(size, int)
    assert (32 - engines * size) % 16 == 0


def test_fsdp_turbos_sizes_and_plans_are_those_of_another_back_end() -> None:
    turbo = f"{ACTOR}.fsdp_config.turbo_config"
    found = from_keys(
        f"{ACTOR}.strategy=fsdp_turbo",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
        f"{turbo}.distributed.fully_shard_parallel_size=8",
        f"{turbo}.distributed.ulysses_parallel_size=2",
        f"{turbo}.distributed.fsdp_plan.hook_modules=['layers.{{*}}']",
        f"{turbo}.memory.recompute=True",
        f"{turbo.replace('.actor.', '.ref.')}.memory.recompute=True",
    )
    given = flat(found.values)
    assert given["trainer.ulysses_sequence_parallel_size"] == 2
    assert given["trainer.enable_gradient_checkpointing"] is True
    assert any("without fully_shard_parallel_size=8" in line for line in found.report)
    assert missing(found) == []
    unknown = from_keys(f"{turbo}.distributed.fsdp_plan.param_dtype=fp16")
    assert missing(unknown)
