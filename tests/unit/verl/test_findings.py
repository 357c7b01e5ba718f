"""Manners of real scripts, each as a small case."""

from pathlib import Path

import pytest

from tests.unit.subtests import as_subtests
from tests.unit.verl.builders import converted, flat, from_keys, missing, value
from trinity.config.schema.model import LoRAConfig
from trinity.errors import UserError
from trinity.verl.back import verl_command

START = "python3 -m verl.trainer.main_ppo"
ACTOR = "actor_rollout_ref.actor"


def test_sums_of_lengths(tmp_path: Path) -> None:
    text = f"""
    p=$((1024 * 2)); r=${{R:-$((1024 * 8))}}
    {START} data.max_prompt_length=$p data.max_response_length=${{r}} \\
      {ACTOR}.ppo_max_token_len_per_gpu=$(((p + r) * 2))
    """
    assert value(converted(text, tmp_path), "trainer.max_token_len_per_gpu") == 20480


def test_a_launcher_in_an_array_and_a_device_found_by_a_command(tmp_path: Path) -> None:
    text = """
    DEVICE=${DEVICE:-$(python3 -c 'import other' 2>/dev/null && echo other || echo gpu)}
    case "$DEVICE" in
      gpu) GPUS=8 ;;
      *) GPUS=16 ;;
    esac
    LAUNCH=(python3)
    if [ "${WRAP:-1}" != 0 ] && [ "$DEVICE" = gpu ]; then LAUNCH=(wrap run -- python3); fi
    ARGS=(trainer.n_gpus_per_node=$GPUS data.max_prompt_length=64)
    "${LAUNCH[@]}" -m verl.trainer.main_ppo "${ARGS[@]}" "$@"
    """
    found = converted(text, tmp_path)
    assert value(found, "cluster.gpu_per_node") == 8
    assert any("`python3 -c 'import other'` is not run" in line for line in found.report)


@pytest.mark.parametrize(
    "start",
    [
        "ray job submit --address=x -- python3 -m verl.trainer.main_ppo",
        "PYTHONUNBUFFERED=1 python3 -u -m verl.trainer.main_ppo",
        "python3 verl/trainer/main_ppo.py",
        "HYDRA_FULL_ERROR=1 uv run python -m verl.trainer.main_ppo --config-path=conf",
        "bash my_launcher.sh data.train_files=x data.val_files=y algorithm.gamma=1",
    ],
)
def test_ways_to_start_verl(start: str, tmp_path: Path) -> None:
    found = converted(f"{start} data.max_prompt_length=77 2>&1 | tee log", tmp_path)
    assert value(found, "model.max_prompt_tokens") == 77


def test_hydras_signs(tmp_path: Path) -> None:
    found = converted(
        f"{START} +data.seed=3 ++trainer.total_epochs=2 data.image_key=i ~data.image_key", tmp_path
    )
    assert value(found, "buffer.total_epochs") == 2
    assert value(found, "buffer.explorer_input.taskset.data_selector.seed") == 3
    assert "buffer.explorer_input.taskset.format.image_key" not in flat(found.values)


def test_references_to_other_keys(tmp_path: Path) -> None:
    found = converted(
        f"{START} data.max_prompt_length=64 "
        "actor_rollout_ref.rollout.max_model_len='${data.max_prompt_length}' "
        "trainer.experiment_name='run-${data.max_prompt_length}'",
        tmp_path,
    )
    assert value(found, "model.max_model_len") == 64
    assert value(found, "name") == "run-64"


def test_keys_behind_a_comment_in_a_continued_command_are_pointed_out(tmp_path: Path) -> None:
    text = f"{START} data.max_prompt_length=64 \\\n # data.seed=1 \\\n data.max_response_length=9"
    found = converted(text, tmp_path)
    assert value(found, "model.max_response_tokens") == 512
    assert any(
        "data.max_response_length" in line and "not pass them on" in line for line in found.report
    )


@as_subtests(
    ("key", "matters"),
    [
        (f"{ACTOR}.megatron.override_transformer_config.moe_aux_loss_coeff=0.01", False),
        (f"{ACTOR}.megatron.override_transformer_config.moe_router_bias_update_rate=0.1", True),
        (f"{ACTOR}.megatron.override_transformer_config.moe_router_bias_update_rate=0", False),
        (f"{ACTOR}.megatron.override_transformer_config.moe_aux_loss_coeff=0", False),
        (f"{ACTOR}.megatron.override_transformer_config.fp8=hybrid", True),
        (f"{ACTOR}.megatron.override_transformer_config.brand_new=1", True),
        (f"{ACTOR}.megatron.dtype=float16", False),
        (f"{ACTOR}.megatron.dtype=bfloat16", False),
        (f"{ACTOR}.use_torch_compile=False", False),
        (f"{ACTOR}.fsdp_config.reshard_after_forward=True", False),
        (f"{ACTOR}.optim.num_cycles=2", True),
        (f"{ACTOR}.optim.num_cycles=0.5", False),
        (f"{ACTOR}.optim.lr_warmup_init=1e-7", False),
        (f"{ACTOR}.optim.init_lr_ratio=0.1", True),  # without a rate to multiply,
        (f"{ACTOR}.loss_scale_factor=1024", False),
        ("actor_rollout_ref.model.mtp.enable_train=True", True),
        ("actor_rollout_ref.model.mtp.enable=True", False),
        ("actor_rollout_ref.model.mtp.enable_rollout=True", False),
        (f"{ACTOR}.veomni.mhc_implementation=fused", False),
        (f"{ACTOR}.megatron.override_transformer_config.use_fused_mhc=True", False),
        (f"{ACTOR}.megatron.override_transformer_config.dsa_indexer_loss_coeff=0.1", True),
        ("actor_rollout_ref.model.mtp.enable=False", False),
        ("data.train_max_samples=100", True),
        ("data.train_max_samples=-1", False),
        ("actor_rollout_ref.rollout.name=sglang", False),
        ("actor_rollout_ref.rollout.agent.agent_loop_manager_class=a.B", True),
        ("actor_rollout_ref.rollout.multi_turn.enable=False", False),
        ("global_profiler.tool=nsys", False),
        ("actor_rollout_ref.rollout.do_sample=False", True),
        ("actor_rollout_ref.rollout.do_sample=True", False),
        ("actor_rollout_ref.rollout.logprobs_mode=raw_logprobs", True),
        ("critic.ppo_mini_batch_size=64", True),
        ("critic.ppo_mini_batch_size=256", False),
        (f"{ACTOR}.optim.lr_decay_steps=100", False),
        ("trainer.v1.sampler.custom_sampler.path=/s.py", True),
        ("trainer.logger=[console,wandb,swanlab]", False),
        ("reward_model.reward_manager=collabllm", True),
        ("reward_model.reward_manager=prime", False),
    ],
)
def test_what_changes_a_result_is_told_from_what_does_not(key: str, matters: bool) -> None:
    assert (missing(from_keys(key)) != []) is matters


def test_the_end_of_a_schedule_matters_where_the_rate_changes() -> None:
    found = from_keys(f"{ACTOR}.optim.lr_decay_steps=100", f"{ACTOR}.optim.lr_decay_style=cosine")
    assert any("a schedule ends with the run" in line for line in missing(found))


def test_prompts_that_verl_cuts_and_trains_on_are_pointed_out(tmp_path: Path) -> None:
    cut = ("data.truncation=left", "data.filter_overlong_prompts=False")
    assert any("veRL cuts prompts" in line for line in from_keys(*cut).report)
    filtered = from_keys("data.truncation=left", "data.filter_overlong_prompts=True")
    assert not any("veRL cuts prompts" in line for line in filtered.report)
    start = "torchrun -m verl.trainer.sft_trainer data.train_files=/d/train.parquet optim.lr=1e-4"
    for side, matters in (("left", True), ("right", False), ("error", False)):
        found = converted(f"{start} data.truncation={side}", tmp_path)
        assert (missing(found) != []) is matters


def test_the_smallest_rate_of_megatron_is_a_share() -> None:
    found = from_keys(f"{ACTOR}.optim.lr=1e-5", f"{ACTOR}.optim.min_lr=1e-6")
    assert value(found, "algorithm.optimizer.min_lr_ratio") == pytest.approx(0.1)


def test_several_commands_are_asked_about(tmp_path: Path) -> None:
    text = f"{START} data.max_prompt_length=1\n{START} data.max_prompt_length=2\n"
    with pytest.raises(UserError, match=r"starts veRL 2 times \(lines 1, 2\): choose one with"):
        converted(text, tmp_path)


def test_a_script_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="main_generation trains nothing"):
        converted("python3 -m verl.trainer.main_generation model.path=/m", tmp_path)
    with pytest.raises(UserError, match="starts no veRL"):
        converted("echo moved elsewhere", tmp_path)


def test_configurations_as_yaml(tmp_path: Path) -> None:
    text = """
defaults: [ppo_trainer, mine]
data:
  max_prompt_length: 64
actor_rollout_ref:
  actor:
    optim: {lr: 1e-5, _target_: some.Class}
    policy_loss: null
  rollout:
    prompt_length: ${data.max_prompt_length}
"""
    found = converted(text, tmp_path, name="ppo.yaml")
    assert value(found, "algorithm.optimizer.lr") == 1e-5
    assert "ppo.yaml:7 actor_rollout_ref.actor.optim.lr" in found.body
    assert any("`defaults` is Hydra's" in line for line in found.report)


def test_clipping_goes_to_losses_that_have_it() -> None:
    clip = [f"{ACTOR}.clip_ratio_high=0.28", f"{ACTOR}.clip_ratio_c=10.0"]
    found = from_keys(*clip)
    assert value(found, "algorithm.policy_loss_fn_args.clip_range_high") == 0.28
    assert value(found, "algorithm.policy_loss_fn_args.clip_ratio_c") == 10.0
    found = from_keys(
        *clip,
        "algorithm.adv_estimator=grpo",
        f"{ACTOR}.policy_loss.loss_mode=gspo",
        f"{ACTOR}.loss_agg_mode=token-mean",
    )
    assert value(found, "algorithm.policy_loss_fn") == "gspo"
    assert value(found, "algorithm.loss_agg_mode") == "seq-mean-token-mean"
    assert any("`policy_loss_fn: gspo` has no `clip_ratio_c`" in line for line in found.report)
    found = from_keys(f"{ACTOR}.policy_loss.loss_mode=mine")
    assert any("there is no such loss" in line for line in found.report)


def test_losses_of_recipes_become_algorithms() -> None:
    grpo = ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")
    m2po = from_keys(
        *grpo, f"{ACTOR}.policy_loss.loss_mode=m2po", f"{ACTOR}.policy_loss.m2_budget=0.1"
    )
    assert value(m2po, "algorithm.policy_loss_fn") == "m2po"
    assert value(m2po, "algorithm.policy_loss_fn_args.m2_threshold") == 0.1
    assert missing(m2po) == []
    gvpo = from_keys(
        *grpo,
        f"{ACTOR}.policy_loss.loss_mode=gvpo",
        f"{ACTOR}.gvpo_beta=0.2",
        f"{ACTOR}.clip_ratio_high=0.3",
        "algorithm.norm_adv_by_std_in_grpo=False",
    )
    assert (
        value(gvpo, "algorithm.algorithm_type") == value(gvpo, "algorithm.advantage_fn") == "gvpo"
    )
    assert value(gvpo, "algorithm.advantage_fn_args.beta") == 0.2
    assert value(gvpo, "algorithm.policy_loss_fn") == "gpg"
    assert value(gvpo, "algorithm.loss_agg_mode") == "seq-mean-token-sum"
    assert missing(gvpo) == []
    plain = from_keys(*grpo, f"{ACTOR}.policy_loss.loss_mode=gvpo")
    assert any("give False there" in line for line in plain.report)


def test_filtered_rows_of_ppo_count_as_often_as_they_are_drawn() -> None:
    keys = ("algorithm.use_pf_ppo=True", "algorithm.pf_ppo.reweight_method=max_min")
    found = from_keys("algorithm.adv_estimator=gae", *keys, "algorithm.lam=0.95")
    assert value(found, "algorithm.algorithm_type") == "pf_ppo"
    assert value(found, "algorithm.advantage_fn_args.reweight_method") == "max_min"
    assert value(found, "algorithm.advantage_fn_args.lam") == 0.95
    assert missing(found) == []
    other = from_keys("algorithm.adv_estimator=grpo", *keys)
    assert value(other, "algorithm.advantage_fn") == "grpo"
    assert missing(other) == []


def test_a_divisor_and_the_first_rate_of_a_warm_up_have_keys() -> None:
    found = from_keys(f"{ACTOR}.loss_scale_factor=1024", f"{ACTOR}.optim.lr_warmup_init=1e-7")
    assert value(found, "algorithm.loss_scale_factor") == 1024
    assert value(found, "algorithm.optimizer.lr_warmup_init") == 1e-7


def test_grpo_without_spread_and_with_a_penalty() -> None:
    plain = from_keys("algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=False")
    assert value(plain, "algorithm.advantage_fn") == "dr_grpo"
    penalised = from_keys("algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=True")
    assert value(penalised, "algorithm.algorithm_type") == "grpo_verl"


def test_critics_settings_without_a_critic_are_needless() -> None:
    found = from_keys("algorithm.adv_estimator=grpo", "critic.optim.lr=1e-5")
    assert any("has no critic" in line for line in found.report)


def test_supervised_fine_tuning(tmp_path: Path) -> None:
    text = """
    if [ "$#" -lt 2 ]; then echo usage; exit 1; fi
    nproc=$1; save=$2; shift 2
    torchrun --standalone --nnodes=1 --nproc_per_node=$nproc -m verl.trainer.sft_trainer \\
      data.train_files=$HOME/data/chat/train.parquet data.val_files=$HOME/data/chat/test.parquet \\
      data.messages_key=messages data.micro_batch_size_per_gpu=4 data.train_batch_size=64 \\
      optim.lr=1e-4 engine=fsdp model.path=Qwen/Qwen3-0.6B trainer.default_local_dir=$save \\
      trainer.project_name=sft trainer.experiment_name=one trainer.total_epochs=2 "$@"
    """
    found = converted(text, tmp_path)
    buffer = "buffer.trainer_input.experience_buffer"
    expected = {
        "mode": "train",
        "algorithm.algorithm_type": "sft",
        "algorithm.optimizer.lr": 1e-4,
        "model.model_path": "Qwen/Qwen3-0.6B",
        "model.max_model_len": 1024,
        "buffer.train_batch_size": 64,
        "buffer.total_epochs": 2,
        f"{buffer}.storage_type": "file",
        f"{buffer}.path": "${oc.env:HOME}/data/chat/train.parquet",
        f"{buffer}.format.prompt_type": "messages",
        f"{buffer}.format.messages_key": "messages",
    }
    assert expected.items() <= flat(found.values).items()
    assert any("data.val_files" in line for line in found.report)
    assert any("torchrun.nproc_per_node=UNKNOWN is not a number" in line for line in found.report)


def test_lists_and_nulls_that_scripts_quote() -> None:
    found = from_keys(
        f"{ACTOR}.optim.betas='[0.9,0.95]'",
        "algorithm.rollout_correction.rollout_rs=null",
        f"{ACTOR}.optim.lr_warmup_steps=null",
    )
    assert value(found, "algorithm.optimizer.betas") == [0.9, 0.95]
    assert "algorithm.optimizer.lr_warmup_steps" not in flat(found.values)
    assert any("null leaves it to the default" in line for line in found.report)


def test_adapters_count_only_with_a_rank() -> None:
    model = "actor_rollout_ref.model"
    found = from_keys(f"{model}.lora_rank=0", f"{model}.lora_alpha=0")
    assert not any("lora" in key for key in flat(found.values))
    found = from_keys(
        f"{model}.lora_rank=8", f"{model}.lora_alpha=16", f"{model}.target_modules=[q,v]"
    )
    assert value(found, "model.lora_configs[0].lora_rank") == 8
    assert value(found, "model.lora_configs[0].target_modules") == "q,v"


def test_an_adapter_of_verls_is_planned_as_ours() -> None:
    model = "actor_rollout_ref.model"
    found = from_keys(
        f"{model}.path=some/model",
        "data.train_files=rows.parquet",
        f"{model}.lora.rank=8",
        f"{model}.lora.exclude_modules='.*visual.*'",
        f"{model}.lora.merge=True",
    )
    given = flat(found.values)
    assert any("merged into the weights" in line for line in found.report)
    lora = LoRAConfig.model_validate(
        {name.rpartition(".")[2]: one for name, one in given.items() if "lora_configs[0]" in name}
    )
    assert (lora.lora_rank, lora.targets, lora.excluded) == (8, "all-linear", ".*visual.*")


def test_an_adapter_to_go_on_with_has_its_own_rank() -> None:
    found = from_keys("actor_rollout_ref.model.lora_adapter_path=some/adapter")
    given = [name for name in flat(found.values) if "lora" in name]
    assert given == ["model.lora_configs[0].path"]


def test_a_value_that_only_running_could_tell_is_asked_for(tmp_path: Path) -> None:
    text = f"{START} {ACTOR}.ppo_max_token_len_per_gpu=$((8 / PIECES)) data.max_prompt_length=9"
    found = converted(text, tmp_path)
    assert "trainer.max_token_len_per_gpu" not in flat(found.values)
    assert any("give actor_rollout_ref.actor.ppo_max_token" in line for line in found.report)


def test_references_that_a_whole_configuration_makes(tmp_path: Path) -> None:
    text = """
trainer: {n_gpus_per_node: 4, nnodes: 1}
actor_rollout_ref:
  rollout:
    name: ???
    n: ${oc.select:data.samples,3}
    temperature: ${oc.select:nobody,${oc.select:nobody_else,0.5}}
    max_model_len: ${oc.select:nobody.sets.this,null}
    top_p: ${.temperature}
"""
    found = flat(converted(text, tmp_path, name="ppo.yaml").values)
    assert found["algorithm.repeat_times"] == 3
    assert found["model.temperature"] == found["model.top_p"] == 0.5
    assert "model.max_model_len" not in found
    assert "explorer.rollout_model.engine_type" not in found


def test_a_configuration_of_ours_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has the section `buffer` .* --to-verl"):
        converted("buffer: {batch_size: 1}", tmp_path, name="ours.yaml")


def test_commands_of_several_lines_are_shown_on_one(tmp_path: Path) -> None:
    text = f"D=$(python3 - <<'X'\nprint(1)\nX\n)\n{START} data.max_prompt_length=9 data.seed=$D"
    found = converted(text, tmp_path)
    assert all(line.isprintable() for line in found.report)
    assert any("`$(python3 - <<'X' print(1) X )` is not run" in line for line in found.report)


def test_a_number_of_nodes_that_the_scheduler_knows_is_asked_for(tmp_path: Path) -> None:
    text = f"NNODES=${{SLURM_JOB_NUM_NODES}}\n{START} trainer.nnodes=$NNODES"
    found = converted(text, tmp_path)
    assert value(found, "cluster.node_num") == 1
    (advice,) = [line for line in found.report if "is not a number" in line]
    assert "--env SLURM_JOB_NUM_NODES=<number>, or `cluster.node_num`" in advice
    assert any("takes SLURM_JOB_NUM_NODES from its environment" in one for one in found.report)


def test_what_only_running_could_tell_is_named_where_it_was_written(tmp_path: Path) -> None:
    found = converted(f"{START} trainer.experiment_name=run-$(date +%s)", tmp_path)
    assert value(found, "name") == "run-UNKNOWN"
    assert any("`name`: write a value for UNKNOWN" in line for line in found.report)


def test_what_is_empty_is_pointed_out(tmp_path: Path) -> None:
    text = f'MODEL=""\n{START} data.train_files=$ROWS actor_rollout_ref.model.path=$MODEL'
    found = converted(text.replace("$ROWS", ""), tmp_path)
    assert any("`model.model_path`: empty in the sources" in line for line in found.report)
    assert any("`data.train_files` is empty" in line for line in found.report)


def test_keys_that_change_memory_and_time_alone_do_not_stop_a_run() -> None:
    found = from_keys(f"{ACTOR}.use_torch_compile=False")
    (line,) = [one for one in found.report if "use_torch_compile" in one]
    assert "it affects memory and time only" in line


def test_the_cut_of_micro_batches_is_the_scripts_own() -> None:
    rows = (f"{ACTOR}.use_dynamic_bsz=False", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4")
    reference = "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"
    found = from_keys(*rows, reference, "trainer.balance_batch=False")
    assert value(found, "trainer.use_dynamic_bsz") is False
    assert value(found, "trainer.ppo_micro_batch_size_per_gpu") == 4
    assert value(found, "trainer.log_prob_micro_batch_size_per_gpu") == 8
    assert value(found, "trainer.balance_batch") is False


def test_rows_of_micro_batches_act_by_default_as_in_verl() -> None:
    rows = f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"
    assert value(from_keys(rows), "trainer.use_dynamic_bsz") is False
    by_tokens = from_keys(rows, f"{ACTOR}.use_dynamic_bsz=True")
    assert value(by_tokens, "trainer.use_dynamic_bsz") is True
    assert "use_dynamic_bsz" not in from_keys().body


def test_sampling_of_evaluations_is_not_called_needless() -> None:
    val = "actor_rollout_ref.rollout.val_kwargs"
    for sampled in (f"{val}.do_sample=True", f"{val}.do_sample=False"):
        found = from_keys(sampled, f"{val}.top_p=0.7", f"{val}.n=4")
        assert value(found, "buffer.explorer_input.eval_tasksets[0].rollout_args.top_p") == 0.7


CORRECTION = "algorithm.rollout_correction"


def test_bypass_mode_has_the_loss_of_its_own_key() -> None:
    given = [f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.rollout_is=sequence"]
    found = from_keys(*given, f"{CORRECTION}.loss_type=reinforce")
    assert value(found, "algorithm.policy_loss_fn") == "gpg"
    assert value(found, "algorithm.rollout_correction.rollout_is") == "sequence"
    clipped = from_keys(*given, f"{ACTOR}.policy_loss.loss_mode=gspo")
    assert "algorithm.rollout_correction.rollout_is" not in flat(clipped.values)
    assert value(clipped, "algorithm.policy_loss_fn") == "ppo"
    assert any("loss's ratio" in line for line in clipped.report)


def test_a_correction_without_bypass_mode_recomputes_as_verl_does() -> None:
    found = from_keys(f"{CORRECTION}.rollout_is=token")
    assert value(found, "algorithm.bypass_old_logprobs") is False


@pytest.mark.parametrize("kind", ["reinforce", "ppo_clip"])
def test_the_way_back_from_bypass_mode(kind: str, tmp_path: Path) -> None:
    given = [f"{CORRECTION}.bypass_mode=True", f"{CORRECTION}.loss_type={kind}"]
    command = verl_command(from_keys(*given).yaml)
    for text in given:
        assert text in command
    assert "loss_mode" not in command
    assert flat(converted(command, tmp_path).values) == flat(from_keys(*given).values)
