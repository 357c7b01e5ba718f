"""veRL's defaults are written out, and what has a counterpart here is converted to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import converted, flat, from_keys, missing, value
from trinity.algorithm.advantage.samples import Samples
from trinity.config.check import check_file
from trinity.config.data_files import find_data_files
from trinity.operators.group_mean_filter import group_mean_filter
from trinity.operators.overlong_penalty import overlong_penalty
from trinity.operators.rollouts import Rollouts
from trinity.verl.values import JsonValue

ACTOR = "actor_rollout_ref.actor"
LOSS = f"{ACTOR}.policy_loss.loss_mode"
ARGS = "algorithm.policy_loss_fn_args"
TASKS = "buffer.explorer_input.taskset"
OPERATORS = "data_processor.experience_pipeline.operators"
STRICT = ("data.train_batch_size=256",)
"""One of veRL's steps is one of ours."""


@as_subtests(
    ("given", "expected"),
    [
        (["algorithm.adv_estimator=grpo"], {"trainer.enable_gradient_checkpointing": True}),
        (["algorithm.adv_estimator=grpo"], {"trainer.use_remove_padding": True}),
        (["algorithm.adv_estimator=grpo"], {"algorithm.optimizer.betas": [0.9, 0.999]}),
        (["algorithm.adv_estimator=grpo"], {"algorithm.optimizer.weight_decay": 0.01}),
        (["algorithm.adv_estimator=grpo"], {"trainer.grad_clip": 1.0}),
        (["algorithm.adv_estimator=gae"], {"trainer.critic.cliprange_value": 0.5}),
        (
            ["algorithm.adv_estimator=gae", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum"],
            {"trainer.critic.loss_agg_mode": "seq-mean-token-sum"},
        ),
        ([f"{LOSS}=vanilla"], {f"{ARGS}.clip_range_low": 0.2, f"{ARGS}.clip_range_high": 0.2}),
        ([f"{LOSS}=gspo"], {f"{ARGS}.clip_range_low": 0.2, f"{ARGS}.clip_range_high": 0.2}),
        ([f"{LOSS}=cispo"], {f"{ARGS}.clip_range_low": 0.2, f"{ARGS}.clip_range_high": 0.2}),
        ([f"{LOSS}=dppo_tv"], {f"{ARGS}.clip_ratio_c": 3.0}),
        ([f"{LOSS}=dppo_kl"], {f"{ARGS}.clip_ratio_c": 3.0}),
        ([f"{LOSS}=sapo"], {"algorithm.loss_agg_mode": "seq-mean-token-mean"}),
        (
            [f"{LOSS}=sapo", f"{ACTOR}.loss_agg_mode=token-mean"],
            {"algorithm.loss_agg_mode": "seq-mean-token-mean"},
        ),
        ([f"{LOSS}=dro", f"{ACTOR}.policy_loss.dro_beta=0.5"], {f"{ARGS}.dro_beta": 0.5}),
        (
            ["actor_rollout_ref.rollout.data_parallel_size=2"],
            {"explorer.rollout_model.data_parallel_size": 2},
        ),
        (
            ["actor_rollout_ref.rollout.expert_parallel_size=8"],
            {"explorer.rollout_model.enable_expert_parallel": True},
        ),
        (
            [f"{ACTOR}.ulysses_sequence_parallel_size=4"],
            {"trainer.ulysses_sequence_parallel_size": 4},
        ),
        ([f"{LOSS}=kl_cov"], {f"{ARGS}.ppo_kl_coef": 0.1, f"{ARGS}.kl_cov_ratio": 0.0002}),
        ([f"{LOSS}=clip_cov"], {f"{ARGS}.clip_cov_ub": 5.0, f"{ARGS}.clip_range_high": 0.2}),
        ([f"{ACTOR}.loss_agg_mode=token-sum"], {"algorithm.loss_agg_mode": "token-sum"}),
    ],
)
def test_a_default_of_verls_is_written(given: list[str], expected: dict[str, JsonValue]) -> None:
    assert expected.items() <= flat(from_keys(*given).values).items()


def test_what_is_set_goes_before_a_default() -> None:
    found = from_keys(
        f"{LOSS}=kl_cov",
        f"{ACTOR}.policy_loss.ppo_kl_coef=1",
        f"{ACTOR}.optim.betas=[0.9,0.95]",
        f"{ACTOR}.grad_clip=0.5",
        "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    )
    assert value(found, f"{ARGS}.ppo_kl_coef") == 1
    assert value(found, "algorithm.optimizer.betas") == [0.9, 0.95]
    assert value(found, "trainer.grad_clip") == 0.5
    assert value(found, "trainer.enable_gradient_checkpointing") is False


def test_clip_ratio_gives_way_to_verls_defaults_of_the_other_two() -> None:
    found = from_keys(f"{ACTOR}.clip_ratio=0.1")
    assert value(found, f"{ARGS}.clip_range_low") == 0.2
    assert any("clip_ratio_low and clip_ratio_high is 0.2" in line for line in found.report)
    none = from_keys(
        *(f"{ACTOR}.{name}" for name in ("clip_ratio=0.1", "clip_ratio_low=null")),
        f"{ACTOR}.clip_ratio_high=null",
    )
    assert f"{ARGS}.clip_range_low" not in flat(none.values)
    assert value(none, f"{ARGS}.clip_range") == 0.1


def test_old_logprobs_are_the_trainers_where_that_is_verls_meaning() -> None:
    """The weights before a step here are those before veRL's only where the steps are the same."""
    key = "algorithm.bypass_old_logprobs"
    assert value(from_keys(*STRICT, sync_offset=0), key) is False
    assert value(from_keys(*STRICT), key) is True
    assert value(from_keys("data.train_batch_size=1024", sync_offset=0), key) is True
    corrected = from_keys("algorithm.rollout_correction.rollout_is=token")
    assert value(corrected, key) is False
    bypassed = from_keys(*STRICT, f"{ACTOR}.use_rollout_log_probs=True", sync_offset=0)
    assert value(bypassed, key) is True


def test_gspo_keeps_advantages_of_tokens_where_there_are_some() -> None:
    key = "algorithm.policy_loss_fn"
    assert value(from_keys("algorithm.adv_estimator=grpo", f"{LOSS}=gspo"), key) == "gspo"
    assert value(from_keys("algorithm.adv_estimator=gae", f"{LOSS}=gspo"), key) == "gspo_token"


def test_terms_that_add_up_in_another_way_are_pointed_out() -> None:
    given = [f"{LOSS}=gspo", f"{ACTOR}.loss_agg_mode=token-mean"]
    assert not any("all share one mode" in line for line in from_keys(*given).report)
    found = from_keys(*given, f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.entropy_coeff=0.1")
    assert any("the KL loss and the entropy" in line for line in found.report)


def test_gdpo_compares_the_parts_that_are_named() -> None:
    found = from_keys("algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right,format]")
    assert value(found, "algorithm.advantage_fn") == "gdpo"
    assert value(found, "algorithm.advantage_fn_args.reward_weights.format") == 1.0
    assert missing(found) == []


def test_groups_of_one_accuracy_are_drawn_again() -> None:
    on = ("algorithm.adv_estimator=grpo", "algorithm.filter_groups.enable=True")
    found = from_keys(*on, "algorithm.filter_groups.metric=acc")
    assert value(found, f"{OPERATORS}[0].name") == "dapo_dynamic_sampling"
    assert value(found, "buffer.max_refill_rounds") == 1000
    bounded = from_keys(*on, "algorithm.filter_groups.max_num_gen_batches=10")
    assert value(bounded, "algorithm.advantage_fn_args.std_threshold") == 0.0
    assert value(bounded, "buffer.max_refill_rounds") == 10
    assert value(bounded, "buffer.short_batch") == "fail"
    other = from_keys("algorithm.adv_estimator=rloo", on[1])
    assert value(other, f"{OPERATORS}[0].name") == "reward_std_filter"
    off = from_keys("algorithm.filter_groups.metric=acc")
    assert "buffer.max_refill_rounds" not in flat(off.values)


def test_dapos_first_keys_give_the_penalty_and_the_loss_of_its_paper() -> None:
    """A limit of 20,480 tokens of which the last 4,096 are punished, from 0 to 1."""
    section = "custom_reward_function.overlong_buffer"
    own = ("custom_reward_function.path=mine.py", "data.max_response_length=20480")
    keys = (f"{section}.enable=True", f"{section}.len=4096", f"{section}.penalty_factor=1.0")
    found = from_keys(*own, *keys, f"{ACTOR}.use_token_level_loss=True")
    assert missing(found) == []
    assert value(found, f"{OPERATORS}[0].name") == "overlong_penalty"
    arguments: dict[str, Any] = {
        name: value(found, f"{OPERATORS}[0].args.{name}")
        for name in ("max_response_length", "cache_length", "penalty_factor")
    }
    lengths = np.array([100, 16384, 18432, 20480])
    given = Rollouts.of(Samples.of_groups([1.0] * 4), response_lengths=lengths)
    changed = overlong_penalty(given, **arguments).rewards
    assert changed is not None and changed.tolist() == [1.0, 1.0, 0.5, 0.0]
    assert value(found, "algorithm.loss_agg_mode") == "token-mean"
    of_answers = from_keys(*own, f"{ACTOR}.use_token_level_loss=False")
    assert value(of_answers, "algorithm.loss_agg_mode") == "seq-mean-token-mean"
    off = from_keys(*own, f"{section}.enable=False", f"{section}.len=0")
    assert "data_processor" not in off.values and missing(off) == []


def test_primes_filter_keeps_accuracies_from_a_fifth_to_four_fifths() -> None:
    bounds = ("data.accuracy_lower_bound=0.2", "data.accuracy_upper_bound=0.8")
    keys = ("algorithm.adv_estimator=rloo", "data.n_samples=5", "data.oversample_factor=4")
    found = from_keys(*keys, "data.filter_accuracy=True", *bounds)
    assert missing(found) == []
    assert value(found, "algorithm.repeat_times") == 5
    place = f"{OPERATORS}[0].args"
    arguments: dict[str, Any] = {n: value(found, f"{place}.{n}") for n in ("lower", "upper")}
    groups = [[1.0] * right + [0.0] * (5 - right) for right in range(6)]
    left_out = group_mean_filter(Rollouts.of(Samples.of_groups(*groups)), **arguments).left_out
    assert left_out is not None
    assert left_out.reshape(6, 5)[:, 0].tolist() == [True, False, False, False, False, True]
    off = from_keys(*keys, "data.filter_accuracy=False", *bounds)
    assert "data_processor" not in off.values and missing(off) == []


def test_a_script_reads_the_files_that_it_names_and_no_other(tmp_path: Path) -> None:
    names = (
        "train.parquet",
        "train_big.parquet",
        "test.parquet",
        "part-0.parquet",
        "part-1.parquet",
    )
    for name in names:
        (tmp_path / name).touch()
    files = (
        f"data.train_files={tmp_path}/train.parquet",
        f"data.val_files=[{tmp_path}/test.parquet]",
    )
    found = flat(from_keys(*files).values)
    trained, evaluated = found[f"{TASKS}.path"], found[f"{TASKS[:-7]}eval_tasksets[0].path"]
    assert [trained, evaluated] == [f"{tmp_path}/train.parquet", f"{tmp_path}/test.parquet"]
    assert find_data_files(str(trained), "train") == (tmp_path / "train.parquet",)
    several = flat(from_keys(f"data.train_files={tmp_path}/part-*.parquet").values)
    paths = [several[f"{TASKS}s[{position}].path"] for position in (0, 1)]
    assert paths == [f"{tmp_path}/part-0.parquet", f"{tmp_path}/part-1.parquet"]
    home = flat(from_keys("data.train_files=~/rows/train.parquet").values)
    assert home[f"{TASKS}.path"] == "~/rows/train.parquet"


def test_verls_rows_are_read_as_they_are() -> None:
    found = flat(from_keys("data.train_files=/d/train.parquet").values)
    assert found[f"{TASKS}.format.prompt_key"] == "prompt"
    assert found[f"{TASKS}.format.response_key"] == "reward_model.ground_truth"
    assert found[f"{TASKS}.format.reward_fn_key"] == "data_source"
    assert found["buffer.explorer_input.eval_tasksets[0].format.reward_fn_key"] == "data_source"
    assert found["buffer.explorer_input.default_workflow_type"] == "simple_workflow"
    named = from_keys("data.reward_fn_key=source")
    assert value(named, f"{TASKS}.format.reward_fn_key") == "source"


@pytest.mark.parametrize(
    "prefix",
    [
        ("reward_model.reward_manager", "reward_model.reward_kwargs.overlong_buffer_cfg"),
        ("reward.reward_manager.name", "reward.reward_kwargs.overlong_buffer_cfg"),
        ("reward_model.reward_manager", "reward_model.overlong_buffer"),
    ],
)
def test_dapos_manager_is_its_reward_with_its_penalty(prefix: tuple[str, str]) -> None:
    manager, buffer = prefix
    found = from_keys(
        f"{manager}=dapo",
        f"{buffer}.enable=True",
        f"{buffer}.len=64",
        f"{buffer}.penalty_factor=0.5",
        "data.max_response_length=256",
    )
    given = flat(found.values)
    assert given["buffer.explorer_input.default_reward_fn_type"] == "math_dapo_reward"
    assert f"{TASKS}.format.reward_fn_key" not in given
    for taskset in (TASKS, "buffer.explorer_input.eval_tasksets[0]"):
        assert given[f"{taskset}.reward_fn_args.enable_overlong_penalty"] is True
        assert given[f"{taskset}.reward_fn_args.penalty_factor"] == 0.5
        assert given[f"{taskset}.reward_fn_args.cache_length"] == 64
        assert given[f"{taskset}.reward_fn_args.max_response_length"] == 256
    assert missing(found) == []
    off = from_keys(f"{manager}=dapo", f"{buffer}.enable=False", f"{buffer}.len=64")
    assert not any("reward_fn_args" in key for key in flat(off.values))


def test_a_function_of_ones_own_is_a_reward_in_a_plugin_folder() -> None:
    own = ["custom_reward_function.path=recipe/mine/score.py", "custom_reward_function.name=rate"]
    kwargs = "custom_reward_function.reward_kwargs.limit=3"
    found = from_keys(*own, kwargs)
    assert value(found, "buffer.explorer_input.default_reward_fn_type") == "score.rate"
    assert value(found, f"{TASKS}.reward_fn_args.limit") == 3
    assert any("`--plugin-dir recipe/mine`" in line for line in found.report)
    penalised = from_keys(
        *own,
        "reward_model.reward_manager=dapo",
        "reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
        "reward_model.reward_kwargs.overlong_buffer_cfg.len=8",
        "reward_model.reward_kwargs.max_resp_len=32",
        "algorithm.adv_estimator=grpo",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
    )
    assert value(penalised, f"{OPERATORS}[0].name") == "overlong_penalty"
    assert value(penalised, f"{OPERATORS}[0].args.cache_length") == 8
    assert value(penalised, f"{OPERATORS}[1].name") == "dapo_dynamic_sampling"


def test_rollout_that_runs_ahead_of_training(tmp_path: Path) -> None:
    text = """python3 -m verl.experimental.fully_async_policy.fully_async_main \\
      data.train_batch_size=0 data.gen_batch_size=1 actor_rollout_ref.rollout.n=8 \\
      actor_rollout_ref.actor.ppo_mini_batch_size=32 rollout.total_rollout_steps=51200 \\
      async_training.staleness_threshold=0.5 async_training.trigger_parameter_sync_step=4 \\
      async_training.require_batches=2 async_training.partial_rollout=True \\
      trainer.nnodes=1 trainer.n_gpus_per_node=6 rollout.nnodes=1 rollout.n_gpus_per_node=2 \\
      actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.test_freq=5
    """
    found = converted(text, tmp_path)
    expected: dict[str, JsonValue] = {
        "buffer.batch_size": 32,
        "synchronizer.sync_style": "fully_async",
        "synchronizer.sync_interval": 8,
        "synchronizer.weight_update": "keep",
        "explorer.max_inflight_batches": 5,
        "buffer.total_steps": 1600,
        "trainer.total_steps": 1600,
        "explorer.eval_interval": 40,
        "cluster.node_num": 1,
        "cluster.gpu_per_node": 8,
        "explorer.rollout_model.engine_num": 2,
    }
    for key, wanted in expected.items():
        assert value(found, key) == wanted, key
    assert "synchronizer.sync_offset" not in flat(found.values)
    assert missing(found) == []


@as_subtests(
    ("given", "choices", "expected"),
    [
        ("partial_rollout=False", {}, ("fixed", "drain", 1)),
        ("staleness_threshold=0", {}, ("fixed", "drain", 0)),
        ("staleness_threshold=0.25", {}, ("fully_async", "keep", None)),
        ("partial_rollout=True", {"sync_offset": 0}, ("fixed", "drain", 0)),
        ("partial_rollout=True", {"sync_offset": 1}, ("fixed", "keep", 1)),
    ],
)
def test_rollouts_go_on_while_weights_change_where_they_did(
    given: str, choices: dict[str, int], expected: tuple[str, str, int | None]
) -> None:
    usual = ["data.train_batch_size=0", "async_training.staleness_threshold=0.5"]
    usual += ["async_training.partial_rollout=True"]
    found = flat(from_keys(*usual, f"async_training.{given}", **choices).values)
    keys = ("sync_style", "weight_update", "sync_offset")
    assert tuple(found.get(f"synchronizer.{key}") for key in keys) == expected


def test_keys_of_an_older_fully_async_trainer_mean_the_same(tmp_path: Path) -> None:
    text = """python3 -m verl.experimental.fully_async_policy.fully_async_main \\
      data.train_batch_size=0 actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
      async_training.trigger_parameter_sync_step=4 async_training.require_batches=2 \\
      async_training.use_rollout_log_probs=True rollout.test_freq=10 rollout.total_epochs=3 \\
      trainer.test_freq=-1 """
    found = converted(text, tmp_path)
    assert value(found, "explorer.eval_interval") == 80
    assert value(found, "buffer.total_epochs") == 3
    assert value(found, "algorithm.bypass_old_logprobs") is True
    assert missing(found) == []
    both = converted(text + "rollout.total_rollout_steps=3200", tmp_path)
    assert value(both, "buffer.total_steps") == 100
    assert missing(both) == []
    prox = converted(text + "async_training.compute_prox_log_prob=True", tmp_path)
    assert "compute_prox_log_prob" in "".join(missing(prox)), "their two ratios are asked about"


def test_rows_that_are_too_old_are_left_out_as_in_verl() -> None:
    sampler = "trainer.v1.sampler"
    given = ["data.train_batch_size=1024", f"{sampler}.max_off_policy_threshold=2"]
    found = from_keys(*given, "trainer.v1.separate_async.parameter_sync_step=4")
    assert value(found, "algorithm.sample_strategy") == "staleness_control"
    assert value(found, "algorithm.sample_strategy_args.max_staleness") == 7
    assert missing(found) == []
    wrong = from_keys(*given, "trainer.v1.separate_async.parameter_sync_step=3")
    assert any("which is 4" in line for line in missing(wrong))
    waits = from_keys(f"{sampler}.max_off_policy_strategy=wait")
    assert any("max_off_policy_strategy" in line for line in missing(waits))


TEACHER = "distillation.teacher_models.teacher_model"
LOSS_OF_TEACHER = "distillation.distillation_loss"
DISTILLED = (
    "distillation.enabled=True",
    "distillation.n_gpus_per_node=2",
    f"{TEACHER}.model_path=/teacher",
    f"{TEACHER}.inference.tensor_model_parallel_size=2",
    f"{LOSS_OF_TEACHER}.use_task_rewards=False",
)


def test_a_teacher_trains_in_place_of_rewards() -> None:
    found = from_keys(*DISTILLED, f"{LOSS_OF_TEACHER}.loss_mode=k1", "trainer.n_gpus_per_node=4")
    expected: dict[str, JsonValue] = {
        "algorithm.algorithm_type": "on_policy_distill",
        "algorithm.advantage_fn": "on_policy_distill",
        "algorithm.advantage_fn_args.kl_coef": 1.0,
        "algorithm.advantage_fn_args.max_gap": 10.0,
        "buffer.explorer_input.default_workflow_type": "on_policy_distill_workflow",
        "explorer.auxiliary_models[0].model_path": "/teacher",
        "explorer.auxiliary_models[0].tensor_parallel_size": 2,
        "explorer.auxiliary_models[0].engine_num": 1,
        "cluster.gpu_per_node": 6,
    }
    assert expected.items() <= flat(found.values).items()
    assert missing(found) == []


def teachers(*names: str) -> list[str]:
    """Keys of further teachers, each with rows of its own."""
    return [
        f"+distillation.teacher_models.{name}.{key}"
        for name in names
        for key in (f"model_path=/{name}", f"key=of_{name}", "num_replicas=1")
    ]


def test_each_of_several_teachers_has_its_own_rows() -> None:
    found = from_keys(
        *DISTILLED,
        *teachers("a", "b"),
        f"{LOSS_OF_TEACHER}.loss_mode=k1",
        "data.train_files=/a.parquet",
        "trainer.n_gpus_per_node=8",
        "distillation.n_gpus_per_node=4",
    )
    given = flat(found.values)
    for place, name in enumerate("ab"):
        of_teacher = f"explorer.auxiliary_models[{place}]"
        assert given[f"{of_teacher}.model_path"] == f"/{name}"
        assert given[f"{of_teacher}.name"] == f"of_{name}"
        assert given[f"{of_teacher}.engine_num"] == 1
    workflow = "buffer.explorer_input.taskset.workflow_args.teacher_key"
    assert given[workflow] == "data_source" and "/teacher" not in given.values()
    assert missing(found) == []


def test_without_rewards_the_teachers_coefficient_is_one_as_in_verl() -> None:
    key = f"{LOSS_OF_TEACHER}.distillation_loss_coef=0.5"
    found = from_keys(*DISTILLED, f"{LOSS_OF_TEACHER}.loss_mode=k1", key)
    assert value(found, "algorithm.advantage_fn_args.kl_coef") == 1.0


def test_a_teacher_beside_rewards_is_one_advantage() -> None:
    beside = [key for key in DISTILLED if "use_task_rewards" not in key]
    keys = (f"{LOSS_OF_TEACHER}.loss_mode=k1", f"{LOSS_OF_TEACHER}.distillation_loss_coef=0.5")
    found = from_keys(
        *beside,
        *keys,
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=False",
        "trainer.n_gpus_per_node=4",
    )
    assert value(found, "algorithm.algorithm_type") == "grpo_distill"
    assert value(found, "algorithm.advantage_fn_args.kl_coef") == 0.5
    assert value(found, "algorithm.advantage_fn_args.norm_adv_by_std_in_grpo") is False
    assert missing(found) == []
    other = from_keys(*beside, *keys, "algorithm.adv_estimator=gae", "trainer.n_gpus_per_node=4")
    assert any("`adv_estimator: grpo`'s" in line for line in other.report)


def test_other_ways_to_learn_from_a_teacher_are_not_taken_for_this_one() -> None:
    found = from_keys(*DISTILLED, f"{LOSS_OF_TEACHER}.loss_mode=forward_kl_topk")
    assert any("loss_mode=forward_kl_topk" in line for line in missing(found))
    whole = (f"{LOSS_OF_TEACHER}.use_policy_gradient=False", *teachers("a", "b"))
    second = from_keys(*DISTILLED, f"{LOSS_OF_TEACHER}.loss_mode=forward_kl_topk", *whole)
    assert any("one teacher is in the trainer" in line for line in missing(second))
    off = from_keys(f"{TEACHER}.model_path=/teacher")
    assert "explorer.auxiliary_models[0].model_path" not in flat(off.values)


def test_a_fork_of_verls_names_are_read_and_its_own_rollout_is_named() -> None:
    rollout = "actor_rollout_ref.rollout"
    found = from_keys(
        "algorithm.adv_estimator=grpo",
        f"{rollout}.n_agent=5",
        "data.shuffle_train_dataloader=False",
        "data.train_data_num=null",
        "actor_rollout_ref.actor.state_masking=true",
        "actor_rollout_ref.actor.fsdp_config.grad_offload=true",
        "do_search=false",
    )
    selector = "buffer.explorer_input.taskset.data_selector.selector_type"
    assert value(found, "algorithm.repeat_times") == 5
    assert value(found, selector) == "sequential"
    assert missing(found) == []
    searching = missing(from_keys("max_turns=2", "retriever.url=http://a", f"{rollout}.n_vote=64"))
    assert any("port the rollout to an agent loop" in line for line in searching)
    unknown = from_keys("data.train_data_num=100")
    assert any("train_data_num" in line for line in missing(unknown))


def test_variables_that_the_users_code_may_read_are_named(tmp_path: Path) -> None:
    text = """export REWARD_MODE=partial
    export BASE=/m
    export NCCL_DEBUG=INFO
    python -m verl.trainer.main_ppo actor_rollout_ref.model.path=$BASE \\
      '+ray_kwargs.ray_init.runtime_env.env_vars.HF_ENDPOINT="https://m"' \\
      '+ray_kwargs.ray_init.runtime_env.env_vars.NCCL_P2P_DISABLE="1"'
    """
    report = "\n".join(converted(text, tmp_path).report)
    assert "exports REWARD_MODE: set it in the environment of `trinity run`" in report
    assert "give HF_ENDPOINT=https://m to `trinity run` in its environment" in report
    assert "exports BASE" not in report and "NCCL_P2P_DISABLE=1 to" not in report


def test_a_run_that_only_evaluates_is_a_bench() -> None:
    found = from_keys("trainer.val_only=True", "trainer.total_training_steps=0")
    assert value(found, "mode") == "bench"
    assert not any("total_steps" in key for key in flat(found.values))
    assert missing(found) == []
    assert "mode" not in flat(from_keys("trainer.val_only=False").values)


def test_a_teachers_whole_distributions_are_compared_in_the_trainer() -> None:
    whole = (
        *DISTILLED,
        f"{LOSS_OF_TEACHER}.loss_mode=forward_kl_topk",
        f"{LOSS_OF_TEACHER}.use_policy_gradient=False",
        f"{LOSS_OF_TEACHER}.topk=64",
        f"{LOSS_OF_TEACHER}.loss_max_clamp=10.0",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "trainer.n_gpus_per_node=4",
    )
    found = from_keys(*whole)
    expected: dict[str, JsonValue] = {
        "algorithm.algorithm_type": "vocabulary_distill",
        "algorithm.advantage_fn": "none",
        "algorithm.policy_loss_fn": "gpg",
        "algorithm.kl_loss_fn": "none",
        "algorithm.distillation.model_path": "/teacher",
        "algorithm.distillation.divergence": "forward",
        "algorithm.distillation.top_k": 64,
        "cluster.gpu_per_node": 6,
    }
    assert expected.items() <= flat(found.values).items()
    assert missing(found) == []
    assert not any("auxiliary_models" in key for key in flat(found.values))
    rewarded = [key for key in whole if "use_task_rewards" not in key]
    beside = from_keys(*rewarded, f"{LOSS_OF_TEACHER}.distillation_loss_coef=0.5")
    assert value(beside, "algorithm.algorithm_type") == "ppo"
    assert value(beside, "algorithm.distillation.coef") == 0.5
    assert missing(beside) == []


def test_texts_within_a_column_are_named_by_their_path(tmp_path: Path) -> None:
    text = """torchrun -m verl.trainer.fsdp_sft_trainer data.train_files=/d/train.parquet \\
      data.prompt_key=extra_info data.response_key=extra_info \\
      optim.lr=1e-4 +data.prompt_dict_keys=['question'] +data.response_dict_keys=['answer'] \\
      data.val_files=/d/test.parquet trainer.test_freq=5 trainer.save_freq=7
    """
    found = converted(text, tmp_path)
    buffer = "buffer.trainer_input.experience_buffer.format"
    assert value(found, f"{buffer}.prompt_key") == "extra_info.question"
    assert value(found, f"{buffer}.response_key") == "extra_info.answer"
    assert value(found, "trainer.save_interval") == 7
    assert missing(found) == []


def test_all_turns_of_the_assistant_are_trained(tmp_path: Path) -> None:
    text = "torchrun -m verl.trainer.sft_trainer data.train_files=/d/train.parquet optim.lr=1e-4"
    key = "buffer.trainer_input.experience_buffer.format.enable_concatenated_multi_turn"
    assert value(converted(text, tmp_path), key) is True


def test_variables_in_front_of_a_launcher_are_no_keys(tmp_path: Path) -> None:
    text = """ray job submit --env HF_HOME=/hf WANDB_API_KEY=x -- env VLLM_USE_V1=1 \\
      python3 -m verl.trainer.main_ppo data.max_prompt_length=7 actor_rollout_ref.rollout.n=2
    """
    found = converted(text, tmp_path)
    assert value(found, "model.max_prompt_tokens") == 7
    assert not any("HF_HOME" in line or "VLLM_USE_V1" in line for line in found.report)


def test_a_recipes_configuration_is_found_beside_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "recipe/mine/config"
    folder.mkdir(parents=True)
    (folder / "mine_trainer_x.yaml").write_text("data: {max_prompt_length: 33}\n")
    monkeypatch.chdir(tmp_path)
    keys = "data.seed=1 data.max_response_length=9"
    for path in ("config", "${ROOT}/recipe/mine/config"):
        start = f"python3 -m recipe.mine.main --config-path={path} --config-name=mine_trainer_x"
        assert value(converted(f"{start} {keys}", tmp_path), "model.max_prompt_tokens") == 33


@pytest.mark.parametrize(
    "given",
    [
        ["algorithm.adv_estimator=grpo", f"{LOSS}=kl_cov"],
        ["algorithm.adv_estimator=grpo", f"{LOSS}=clip_cov", f"{ACTOR}.clip_ratio_high=0.3"],
        ["algorithm.adv_estimator=grpo", f"{LOSS}=sapo"],
        ["algorithm.adv_estimator=gae", f"{LOSS}=gspo"],
        ["algorithm.adv_estimator=gdpo", "algorithm.gdpo_reward_keys=[right]"],
        ["algorithm.adv_estimator=grpo", f"{ACTOR}.loss_agg_mode=token-sum"],
        ["algorithm.adv_estimator=grpo", "reward_model.reward_manager=dapo"],
        [
            "algorithm.adv_estimator=grpo",
            "algorithm.filter_groups.enable=True",
            "algorithm.filter_groups.metric=acc",
        ],
        [*DISTILLED, f"{LOSS_OF_TEACHER}.loss_mode=k1", "algorithm.adv_estimator=grpo"],
        ["algorithm.adv_estimator=grpo", "trainer.v1.sampler.max_off_policy_threshold=2"],
        ["model_engine=megatron", "algorithm.adv_estimator=grpo"],
    ],
)
def test_what_is_written_has_no_mistake(given: list[str], tmp_path: Path) -> None:
    rollouts = "actor_rollout_ref.rollout.n=4"
    found = from_keys(*given, rollouts, "data.train_files=/d/rows.parquet")
    path = tmp_path / "run.yaml"
    path.write_text(found.yaml)
    report = check_file(path)
    assert report.errors == ()
    assert missing(found) == []


def test_dro_without_its_constant_asks_for_it() -> None:
    """veRL has no default of it, and fails without."""
    found = from_keys(f"{LOSS}=dro")
    assert any("dro_beta" in line for line in found.report)
