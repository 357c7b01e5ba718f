"""What a script says means the same after its conversion, or the report says that it does not."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import converted, flat, from_keys, value
from trinity.verl.values import JsonValue

START = "python3 -m verl.trainer.main_ppo"
ACTOR = "actor_rollout_ref.actor"
FOUR_OF_OURS = ("data.train_batch_size=1024", f"{ACTOR}.ppo_mini_batch_size=256")
CRITIC = ("algorithm.adv_estimator=gae",)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (f"{ACTOR}.optim.lr_warmup_steps", "algorithm.optimizer.lr_warmup_steps"),
        (f"{ACTOR}.optim.lr_wsd_decay_steps", "algorithm.optimizer.lr_wsd_decay_steps"),
        ("critic.optim.lr_warmup_steps", "trainer.critic.optimizer.lr_warmup_steps"),
        ("critic.optim.lr_wsd_decay_steps", "trainer.critic.optimizer.lr_wsd_decay_steps"),
        ("trainer.critic_warmup", "trainer.critic_warmup"),
    ],
)
def test_what_is_counted_in_verls_steps_is_counted_in_ours(given: str, key: str) -> None:
    found = from_keys(f"{given}=10", *FOUR_OF_OURS, *CRITIC)
    assert value(found, key) == 40
    assert "10 veRL steps of 4 steps each" in found.body
    assert value(from_keys(f"{given}=-1", *FOUR_OF_OURS, *CRITIC), key) == -1
    assert value(from_keys(f"{given}=10", "data.train_batch_size=256", *CRITIC), key) == 10


@as_subtests(
    ("estimator", "unit"),
    [
        ("grpo", "sample"),
        ("rloo", "sample"),
        ("opo", "sample"),
        ("gpg", "sample"),
        ("grpo_passk", "sample"),
        ("reinforce_plus_plus_baseline", "sample"),
        ("gae", None),
        ("reinforce_plus_plus", None),
        ("remax", None),
    ],
)
def test_baselines_count_samples_as_verls_do(estimator: str, unit: str | None) -> None:
    found = from_keys(f"algorithm.adv_estimator={estimator}")
    assert flat(found.values).get("algorithm.advantage_fn_args.unit") == unit


@pytest.mark.parametrize(
    "key",
    [
        f"{ACTOR}.ulysses_sequence_parallel_size",
        f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size",
    ],
)
def test_a_limit_of_tokens_stays_one_for_the_part_of_each_gpu(key: str) -> None:
    found = from_keys(f"{ACTOR}.ppo_max_token_len_per_gpu=2560", f"{key}=4")
    assert value(found, "trainer.max_token_len_per_gpu") == 2560


def test_a_cosine_ends_where_verls_does() -> None:
    key = "algorithm.optimizer.min_lr_ratio"
    assert value(from_keys(f"{ACTOR}.optim.lr_scheduler_type=cosine"), key) == 0.0
    assert value(from_keys(f"{ACTOR}.optim.warmup_style=cosine"), key) == 0.0
    given = (f"{ACTOR}.optim.lr_scheduler_type=cosine", f"{ACTOR}.optim.min_lr_ratio=0.1")
    assert value(from_keys(*given), key) == 0.1
    assert key not in flat(from_keys(f"{ACTOR}.optim.lr=1e-5").values)
    critic = from_keys("critic.optim.lr_scheduler_type=cosine", *CRITIC)
    assert value(critic, "trainer.critic.optimizer.min_lr_ratio") == 0.0


OLD_SFT: dict[str, JsonValue] = {
    "algorithm.optimizer.lr": 1e-5,
    "algorithm.optimizer.betas": [0.9, 0.95],
    "algorithm.optimizer.lr_warmup_steps_ratio": 0.1,
    "algorithm.optimizer.lr_scheduler_type": "cosine",
    "algorithm.optimizer.min_lr_ratio": 0.0,
}


def test_the_older_trainer_of_examples_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    start = "torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=/d/train.parquet"
    found = flat(converted(start, tmp_path).values)
    assert {key: found[key] for key in OLD_SFT} == OLD_SFT
    wsd = converted(f"{start} optim.lr_scheduler=wsd optim.lr=1e-4", tmp_path)
    assert value(wsd, "algorithm.optimizer.lr_scheduler_type") == "WSD"
    assert value(wsd, "algorithm.optimizer.lr") == 1e-4


def test_the_newer_trainer_of_examples_keeps_one_learning_rate(tmp_path: Path) -> None:
    start = "torchrun -m verl.trainer.sft_trainer data.train_files=/d/train.parquet"
    found = flat(converted(start, tmp_path).values)
    assert found["algorithm.optimizer.lr"] == 1e-3
    assert "algorithm.optimizer.lr_scheduler_type" not in found


def test_an_empty_array_is_no_word(tmp_path: Path) -> None:
    script = f'EXTRA=(\n)\nGIVEN=(data.seed=3)\n{START} "${{GIVEN[@]}}" "${{EXTRA[@]}}" $EXTRA\n'
    found = converted(script, tmp_path)
    assert not any("EXTRA" in line for line in found.report)


OWN = "data: {max_prompt_length: 33}\nactor_rollout_ref: {rollout: {multi_turn: {enable: True}}}\n"


def test_a_configuration_of_the_scripts_own_is_read_below_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/tools.yaml").write_text(f"{OWN}trainer: {{nnodes: 3}}\n")
    script = f'{START} --config-path="$(pwd)/conf" --config-name=tools trainer.nnodes=2'
    found = converted(script, tmp_path)
    assert value(found, "model.max_prompt_tokens") == 33
    assert value(found, "cluster.node_num") == 2
    assert "tools.yaml:2 actor_rollout_ref.rollout.multi_turn.enable" in found.body


def test_one_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    script = f"{START} --config-path=$PWD/conf --config-name=tools_megatron data.seed=3"
    found = converted(script, tmp_path)
    (line,) = [line for line in found.report if "hydra.config_name" in line]
    assert "was not read: give the file before the script" in line
    verls = converted(f"{START} --config-name=ppo_trainer data.seed=3", tmp_path)
    assert not any("before the script" in line for line in verls.report)


def test_a_reward_models_engine_has_an_answer() -> None:
    keys = ["reward_model.enable=True", "reward_model.model.path=/rm"]
    for name in ("vllm", "sglang"):
        found = from_keys(*keys, f"reward_model.rollout.name={name}")
        (line,) = [line for line in found.report if "reward_model.rollout.name" in line]
        assert "vLLM" in line
        assert not line.endswith(": ")


def test_a_sampler_is_an_order_of_tasks() -> None:
    found = from_keys("data.sampler.class_name=Mine", "data.sampler.class_path=/m.py")
    assert any("data_selector.selector_type" in line for line in found.report)


@pytest.mark.parametrize(("gpus", "says"), [(1, "takes 1 of 1 GPU,"), (3, "takes 3 of 3 GPUs,")])
def test_gpus_that_do_not_suffice_are_counted(gpus: int, says: str) -> None:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    ahead = "trainer.v1.trainer_mode=colocate_async"
    found = from_keys(f"trainer.n_gpus_per_node={gpus}", f"{key}={gpus}", ahead)
    (line,) = [line for line in found.report if says in line]
    assert "tensor_parallel_size" in line


def test_an_engine_on_all_gpus_is_halved_so_that_training_has_some() -> None:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    found = from_keys("trainer.n_gpus_per_node=8", f"{key}=8")
    assert value(found, "explorer.rollout_model.tensor_parallel_size") == 4
    assert value(found, "explorer.rollout_model.engine_num") == 1
    assert any("would leave no GPU of 8" in line for line in found.report)
