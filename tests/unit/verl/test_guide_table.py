"""Every row of the guide's tables does what the guide says."""

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import flat, from_keys, value
from trinity.verl.values import JsonValue

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
INPUT = "buffer.explorer_input"
ENGINE = "explorer.rollout_model"
VAL = f"{ROLLOUT}.val_kwargs"


@as_subtests(
    ("given", "key", "expected"),
    [
        # algorithm
        (["algorithm.adv_estimator=gae"], "algorithm.advantage_fn", "ppo"),
        (["algorithm.adv_estimator=gae"], "algorithm.algorithm_type", "ppo"),
        (["algorithm.adv_estimator=grpo"], "algorithm.advantage_fn", "grpo"),
        (["algorithm.adv_estimator=rloo"], "algorithm.algorithm_type", "rloo"),
        (
            ["algorithm.adv_estimator=reinforce_plus_plus"],
            "algorithm.algorithm_type",
            "reinforceplusplus",
        ),
        (
            ["algorithm.adv_estimator=gae", "algorithm.gamma=0.9"],
            "algorithm.advantage_fn_args.gamma",
            0.9,
        ),
        (
            ["algorithm.adv_estimator=gae", "algorithm.lam=0.95"],
            "algorithm.advantage_fn_args.lam",
            0.95,
        ),
        (["algorithm.use_kl_in_reward=False"], "algorithm.kl_penalty_fn", "none"),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_penalty=low_var_kl"],
            "algorithm.kl_penalty_fn",
            "low_var_kl",
        ),
        (["algorithm.use_kl_in_reward=True"], "algorithm.kl_penalty_fn", "k1"),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.kl_coef=0.01"],
            "algorithm.kl_penalty_fn_args.kl_coef",
            0.01,
        ),
        (
            ["algorithm.use_kl_in_reward=True", "algorithm.kl_ctrl.type=adaptive"],
            "algorithm.kl_penalty_fn_args.adaptive",
            True,
        ),
        # data
        (["data.train_files=/d/rows.parquet"], f"{INPUT}.taskset.path", "/d/rows.parquet"),
        (["data.train_files=/d/train.parquet"], f"{INPUT}.taskset.path", "/d/train.parquet"),
        (["data.train_files=[/a/x.parquet,/b/y.parquet]"], f"{INPUT}.tasksets[1].name", "y"),
        (["data.val_files=/d/test.parquet"], f"{INPUT}.eval_tasksets[0].path", "/d/test.parquet"),
        (["data.prompt_key=question"], f"{INPUT}.taskset.format.prompt_key", "question"),
        (["data.prompt_key=question"], f"{INPUT}.eval_tasksets[0].format.prompt_key", "question"),
        (["data.response_key=truth"], f"{INPUT}.taskset.format.response_key", "truth"),
        (["data.max_prompt_length=100"], "model.max_prompt_tokens", 100),
        (["data.max_response_length=200"], "model.max_response_tokens", 200),
        (["data.filter_overlong_prompts=True"], "model.enable_prompt_truncation", True),
        (["data.truncation=right"], "model.enable_prompt_truncation", True),
        (["data.shuffle=True"], f"{INPUT}.taskset.data_selector.selector_type", "shuffle"),
        (["data.shuffle=False"], f"{INPUT}.taskset.data_selector.selector_type", "sequential"),
        # actor, rollout and critic
        (["actor_rollout_ref.model.path=/m"], "model.model_path", "/m"),
        ([f"{ACTOR}.optim.lr=1e-5"], "algorithm.optimizer.lr", 1e-5),
        ([f"{ACTOR}.optim.weight_decay=0.1"], "algorithm.optimizer.weight_decay", 0.1),
        ([f"{ACTOR}.optim.warmup_style=cosine"], "algorithm.optimizer.lr_scheduler_type", "cosine"),
        ([f"{ROLLOUT}.n=5"], "algorithm.repeat_times", 5),
        ([f"{ACTOR}.ppo_mini_batch_size=64"], "buffer.batch_size", 64),
        ([f"{ACTOR}.use_dynamic_bsz=True"], "trainer.use_dynamic_bsz", True),
        ([f"{ACTOR}.ppo_max_token_len_per_gpu=9000"], "trainer.max_token_len_per_gpu", 9000),
        (
            [f"{ACTOR}.ulysses_sequence_parallel_size=2"],
            "trainer.ulysses_sequence_parallel_size",
            2,
        ),
        ([f"{ACTOR}.grad_clip=0.5"], "trainer.grad_clip", 0.5),
        ([f"{ACTOR}.use_kl_loss=False"], "algorithm.kl_loss_fn", "none"),
        ([f"{ACTOR}.use_kl_loss=True"], "algorithm.kl_loss_fn", "low_var_kl"),
        ([f"{ROLLOUT}.gpu_memory_utilization=0.7"], f"{ENGINE}.gpu_memory_utilization", 0.7),
        ([f"{ROLLOUT}.temperature=0.8"], "model.temperature", 0.8),
        ([f"{ROLLOUT}.top_p=0.9"], "model.top_p", 0.9),
        ([f"{ROLLOUT}.top_k=0"], "model.top_k", -1),
        ([f"{ROLLOUT}.tensor_model_parallel_size=4"], f"{ENGINE}.tensor_parallel_size", 4),
        (
            [f"{VAL}.do_sample=True", f"{VAL}.temperature=0.6"],
            f"{INPUT}.eval_tasksets[0].rollout_args.temperature",
            0.6,
        ),
        ([f"{VAL}.n=8"], f"{INPUT}.eval_tasksets[0].repeat_times", 8),
        (
            ["algorithm.adv_estimator=gae", "critic.model.path=/c"],
            "model.critic_model_path",
            "/c",
        ),
        (
            [f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"],
            "trainer.ppo_micro_batch_size_per_gpu",
            2,
        ),
        # reward model
        (
            ["reward_model.enable=True", "reward_model.model.path=/rm"],
            "explorer.auxiliary_models[0].model_path",
            "/rm",
        ),
        # trainer
        (["trainer.logger=[console,mlflow]"], "monitor.monitor_type", "mlflow"),
        (["trainer.logger=console"], "monitor.monitor_type", "none"),
        (["trainer.project_name=p"], "project", "p"),
        (["trainer.experiment_name=a/b c"], "name", "a-b-c"),
        (
            [
                "trainer.default_local_dir=/r/p/e",
                "trainer.project_name=p",
                "trainer.experiment_name=e",
            ],
            "checkpoint_root_dir",
            "/r",
        ),
        (["trainer.n_gpus_per_node=4"], "cluster.gpu_per_node", 4),
        (["trainer.nnodes=2"], "cluster.node_num", 2),
        (["trainer.save_freq=7"], "trainer.save_interval", 7),
        (["trainer.save_freq=7", "data.train_batch_size=256"], "trainer.save_interval", 7),
        (["trainer.save_freq=-1"], "trainer.save_interval", 0),
        (["trainer.test_freq=3"], "explorer.eval_interval", 3),
        (["trainer.test_freq=3", "data.train_batch_size=256"], "explorer.eval_interval", 3),
        (["trainer.total_epochs=2"], "buffer.total_epochs", 2),
        (["trainer.critic_warmup=10", "data.train_batch_size=256"], "trainer.critic_warmup", 10),
        (["trainer.val_before_train=False"], "explorer.eval_on_startup", False),
        ([f"{ACTOR}.optim.optimizer=SGD"], "algorithm.optimizer.optimizer_type", "sgd"),
        (["trainer.resume_mode=disable"], "continue_from_checkpoint", False),
        (["trainer.resume_mode=auto"], "continue_from_checkpoint", True),
    ],
)
def test_a_row_of_the_guide(given: list[str], key: str, expected: JsonValue) -> None:
    assert value(from_keys(*given), key) == expected


def test_batch_sizes() -> None:
    found = from_keys(
        "data.train_batch_size=1024", f"{ACTOR}.ppo_mini_batch_size=128", f"{ROLLOUT}.n=4"
    )
    assert value(found, "buffer.batch_size") == 128
    assert value(found, "buffer.train_batch_size") == 512
    assert value(found, "synchronizer.sync_interval") == 8


def test_steps_of_verl_are_several_of_ours() -> None:
    found = from_keys(
        "data.train_batch_size=1024",
        f"{ACTOR}.ppo_mini_batch_size=256",
        "trainer.total_training_steps=100",
    )
    assert value(found, "buffer.total_steps") == value(found, "trainer.total_steps") == 400
    assert "buffer.total_epochs" not in found.body


def test_batches_that_do_not_divide_are_pointed_out() -> None:
    found = from_keys("data.train_batch_size=1000", f"{ACTOR}.ppo_mini_batch_size=256")
    assert value(found, "synchronizer.sync_interval") == 3
    assert any("is not a multiple of" in line for line in found.report)


def test_a_run_that_never_evaluates_keeps_its_tasksets() -> None:
    found = from_keys("trainer.test_freq=-1")
    every, interval = value(found, "explorer.eval_interval"), 4
    assert isinstance(every, int)
    assert every >= 1_000_000
    assert every % interval == 0


def test_a_checkpoint_to_begin_with_is_taken_where_verl_would_take_it() -> None:
    path = "trainer.resume_from_path=/c/global_step_7"
    found = from_keys("trainer.resume_mode=resume_path", path)
    assert value(found, "trainer.resume_mode") == "resume_path"
    assert value(found, "trainer.resume_from_path") == "/c/global_step_7"
    unread = from_keys("trainer.resume_mode=auto", path)
    assert "trainer.resume_from_path" not in unread.body
    assert any("resume_mode=resume_path" in line for line in unread.report)


@pytest.mark.parametrize(
    ("given", "policy", "critic"),
    [
        (["ppo_epochs=4"], 4, 4),
        (["ppo_epochs=4", "critic=2"], 4, 2),
        (["ppo_epochs=1"], 1, None),
    ],
)
def test_passes_over_a_batch_are_the_critics_too_unless_it_has_its_own(
    given: list[str], policy: int, critic: int | None
) -> None:
    keys = [
        f"{ACTOR}.{one}" if one.startswith("ppo") else one.replace("critic", "critic.ppo_epochs")
        for one in given
    ]
    found = from_keys(*keys)
    assert value(found, "trainer.ppo_epochs") == policy
    if critic is None:
        assert "trainer.critic.ppo_epochs" not in flat(found.values)
    else:
        assert value(found, "trainer.critic.ppo_epochs") == critic


@as_subtests(
    ("given", "engines", "trained"),
    [
        (["trainer.n_gpus_per_node=8", f"{ROLLOUT}.tensor_model_parallel_size=1"], 2, 6),
        (["trainer.n_gpus_per_node=8", f"{ROLLOUT}.tensor_model_parallel_size=4"], 1, 4),
        (["trainer.nnodes=2", f"{ROLLOUT}.tensor_model_parallel_size=2"], 4, 8),
        (["trainer.nnodes=4", f"{ROLLOUT}.tensor_model_parallel_size=8"], 1, 24),
        (["trainer.nnodes=3", f"{ROLLOUT}.tensor_model_parallel_size=3"], 2, 16),
        (["trainer.nnodes=2", f"{ROLLOUT}.nnodes=2"], 4, 16),
        (["trainer.n_gpus_per_node=2", f"{ROLLOUT}.tensor_model_parallel_size=1"], 1, 1),
        ([f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=8"], 4, 8),
    ],
)
def test_gpus_are_shared_out_so_that_training_gets_a_whole_node(
    given: list[str], engines: int, trained: int
) -> None:
    found = from_keys(*given)
    assert value(found, "explorer.rollout_model.engine_num") == engines
    assert f"{trained} train" in found.body


def test_one_gpu_for_rollout_that_goes_on_and_training_is_pointed_out() -> None:
    ahead = "trainer.v1.trainer_mode=colocate_async"
    found = from_keys("trainer.n_gpus_per_node=1", f"{ROLLOUT}.tensor_model_parallel_size=1", ahead)
    assert any("training needs one at least" in line for line in found.report)
