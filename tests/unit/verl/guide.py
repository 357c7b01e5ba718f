"""The align guide's two experiments: their veRL settings and what the guide makes of them."""

from trinity.verl.values import JsonValue

_HOME = "${oc.env:HOME}"

PPO_SCRIPT = """
train_a=$HOME/data/gsm8k/train.parquet
test_a=$HOME/data/gsm8k/test.parquet
train_b=$HOME/data/math/train.parquet
test_b=$HOME/data/math/test.parquet
train="['$train_a', '$train_b']"
tests="['$test_a', '$test_b']"
fetch Qwen/Qwen2-7B-Instruct --local-dir $HOME/models/Qwen2-7B-Instruct &
wait
FSDP=(
  actor_rollout_ref.actor.fsdp_config.param_offload=False
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=False
  critic.model.fsdp_config.param_offload=False
  critic.model.fsdp_config.optimizer_offload=False
)
python3 -m verl.trainer.main_ppo "${FSDP[@]}" \\
  algorithm.adv_estimator=gae algorithm.use_kl_in_reward=False \\
  data.train_files="$train" data.val_files="$tests" data.train_batch_size=1024 \\
  data.max_prompt_length=1024 data.max_response_length=512 \\
  data.filter_overlong_prompts=True data.truncation='error' data.return_raw_chat=True \\
  actor_rollout_ref.model.path="$HOME/models/Qwen2-7B-Instruct" \\
  actor_rollout_ref.model.use_remove_padding=True \\
  actor_rollout_ref.model.enable_gradient_checkpointing=True \\
  actor_rollout_ref.actor.optim.lr=1e-6 \\
  actor_rollout_ref.actor.optim.lr_warmup_steps_ratio=0.1 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
  actor_rollout_ref.actor.use_kl_loss=False \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
  critic.optim.lr=1e-5 critic.optim.lr_warmup_steps_ratio=0.05 \\
  critic.model.path="$HOME/models/Qwen2-7B-Instruct" critic.model.use_remove_padding=True \\
  critic.model.enable_gradient_checkpointing=True critic.ppo_micro_batch_size_per_gpu=32 \\
  reward_model.enable=True \\
  reward_model.model.path="$HOME/models/FsfairX-LLaMA3-RM-v0.1" \\
  reward_model.model.use_remove_padding=True \\
  reward_model.model.fsdp_config.param_offload=True reward_model.micro_batch_size_per_gpu=32 \\
  trainer.critic_warmup=0 trainer.logger='["console","wandb"]' \\
  trainer.project_name='verl_example' trainer.val_before_train=False \\
  trainer.experiment_name='Qwen2-7B-Instruct_hybrid_rm' \\
  trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 \\
  trainer.total_epochs=15 $@
"""

GRPO_SCRIPT = """
set -x
python3 -m verl.trainer.main_ppo \\
  algorithm.adv_estimator=grpo algorithm.use_kl_in_reward=False \\
  data.train_files=$HOME/data/gsm8k/train.parquet data.val_files=$HOME/data/gsm8k/test.parquet \\
  data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=512 \\
  data.filter_overlong_prompts=True data.truncation='error' \\
  actor_rollout_ref.model.path=deepseek-ai/deepseek-llm-7b-chat \\
  actor_rollout_ref.model.use_remove_padding=True \\
  actor_rollout_ref.model.enable_gradient_checkpointing=True \\
  actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
  actor_rollout_ref.actor.use_dynamic_bsz=True \\
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=24000 \\
  actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.001 \\
  actor_rollout_ref.actor.kl_loss_type=low_var_kl actor_rollout_ref.actor.entropy_coeff=0 \\
  actor_rollout_ref.actor.fsdp_config.param_offload=False \\
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=False \\
  actor_rollout_ref.ref.fsdp_config.param_offload=True \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6 actor_rollout_ref.rollout.n=8 \\
  trainer.critic_warmup=0 trainer.logger='["console","wandb"]' \\
  trainer.project_name='verl_grpo_example_gsm8k' \\
  trainer.experiment_name='deepseek_llm_7b_function_rm_seq_packing' \\
  trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.save_freq=20 trainer.test_freq=5 \\
  trainer.total_epochs=15 $@
"""


def _tasks(
    name: str, *, split: str, suffix: str = "", by_model: bool = False
) -> dict[str, JsonValue]:
    by_row: dict[str, JsonValue] = {} if by_model else {"format.reward_fn_key": "data_source"}
    return {
        "name": f"{name}{suffix}",
        "storage_type": "file",
        "path": f"{_HOME}/data/{name}/{split}.parquet",
        "format.prompt_key": "prompt",
        "format.response_key": "reward_model.ground_truth",
        **by_row,
    }


def _all(prefix: str, values: dict[str, JsonValue]) -> dict[str, JsonValue]:
    return {f"{prefix}.{key}": value for key, value in values.items()}


_INPUT = "buffer.explorer_input"
_CONFIG = "trainer.trainer_config"

_BOTH: dict[str, JsonValue] = {
    "checkpoint_root_dir": "./checkpoints",
    "algorithm.optimizer.lr": 1e-6,
    "algorithm.kl_penalty_fn": "none",
    "model.enable_prompt_truncation": True,
    "cluster.node_num": 1,
    "cluster.gpu_per_node": 8,
    "buffer.total_epochs": 15,
    "buffer.batch_size": 256,
    "explorer.eval_interval": 5,
    "explorer.rollout_model.gpu_memory_utilization": 0.6,
    "synchronizer.sync_style": "fixed",
    "synchronizer.sync_offset": 1,
    "synchronizer.sync_interval": 4,
    "synchronizer.sync_timeout": 1200,
    "trainer.save_interval": 20,
    "trainer.use_remove_padding": True,
    "trainer.enable_gradient_checkpointing": True,
    "trainer.param_offload": False,
    "trainer.optimizer_offload": False,
    "trainer.critic_warmup": 0,
    "monitor.monitor_type": "wandb",
}

PPO_VALUES: dict[str, JsonValue] = {
    **_BOTH,
    "project": "verl_example",
    "name": "Qwen2-7B-Instruct_hybrid_rm",
    "algorithm.algorithm_type": "ppo",
    "algorithm.repeat_times": 1,
    "algorithm.optimizer.lr_warmup_steps_ratio": 0.1,
    "algorithm.advantage_fn": "ppo",
    "algorithm.kl_loss_fn": "none",
    "model.model_path": f"{_HOME}/models/Qwen2-7B-Instruct",
    "model.critic_model_path": f"{_HOME}/models/Qwen2-7B-Instruct",
    "model.max_prompt_tokens": 1024,
    "model.max_response_tokens": 512,
    "buffer.train_batch_size": 256,
    **_all(f"{_INPUT}.tasksets[0]", _tasks("gsm8k", split="train", by_model=True)),
    **_all(f"{_INPUT}.tasksets[1]", _tasks("math", split="train", by_model=True)),
    **_all(f"{_INPUT}.eval_tasksets[0]", _tasks("gsm8k", split="test", suffix="_eval")),
    **_all(f"{_INPUT}.eval_tasksets[1]", _tasks("math", split="test", suffix="_eval")),
    "explorer.eval_on_startup": False,
    "explorer.rollout_model.engine_num": 2,
    "explorer.rollout_model.tensor_parallel_size": 1,
    "explorer.auxiliary_models[0].model_path": f"{_HOME}/models/FsfairX-LLaMA3-RM-v0.1",
    "explorer.auxiliary_models[0].engine_num": 2,
    "explorer.auxiliary_models[0].tensor_parallel_size": 1,
    "trainer.ppo_micro_batch_size_per_gpu": 16,
    f"{_CONFIG}.actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 16,
    f"{_CONFIG}.critic.model.use_remove_padding": True,
    "trainer.critic.enable_gradient_checkpointing": True,
    "trainer.critic.param_offload": False,
    "trainer.critic.optimizer_offload": False,
    "trainer.critic.optimizer.lr": 1e-5,
    "trainer.critic.optimizer.lr_warmup_steps_ratio": 0.05,
    "trainer.critic.ppo_micro_batch_size_per_gpu": 32,
}
"""Keys that have a name of ours stand under that name, not below `trainer_config` as in the guide,
where `trinity config check` says of each that it is used as this one."""

GRPO_VALUES: dict[str, JsonValue] = {
    **_BOTH,
    "project": "verl_grpo_example_gsm8k",
    "name": "deepseek_llm_7b_function_rm_seq_packing",
    "algorithm.algorithm_type": "grpo",
    "algorithm.repeat_times": 8,
    "algorithm.advantage_fn": "grpo",
    "algorithm.kl_loss_fn": "low_var_kl",
    "algorithm.kl_loss_fn_args.kl_coef": 0.001,
    "algorithm.entropy_loss_fn_args.entropy_coef": 0,
    "model.model_path": "deepseek-ai/deepseek-llm-7b-chat",
    "model.max_prompt_tokens": 512,
    "model.max_response_tokens": 512,
    "buffer.train_batch_size": 2048,
    **_all(f"{_INPUT}.taskset", _tasks("gsm8k", split="train")),
    **_all(f"{_INPUT}.eval_tasksets[0]", _tasks("gsm8k", split="test", suffix="_eval")),
    "explorer.rollout_model.engine_num": 1,
    "explorer.rollout_model.tensor_parallel_size": 2,
    "trainer.use_dynamic_bsz": True,
    "trainer.max_token_len_per_gpu": 24000,
    f"{_CONFIG}.actor_rollout_ref.ref.fsdp_config.param_offload": True,
}

SAID_BESIDES = {
    f"{_INPUT}.default_workflow_type": "the guide names none, and nothing runs without",
    "auxiliary_models[0].role": "the guide's file leaves it to the model's files",
    f"{_INPUT}.default_reward_fn_type": "a file that names none has the model's scores, too",
    "data_selector.selector_type": "veRL shuffles unless told not to",
    "rollout_args.temperature": "veRL evaluates greedily unless told not to",
    "explorer.rollout_model.engine_type": "the script says vllm, which the guide leaves to us",
    **dict.fromkeys(
        (
            "algorithm.advantage_fn_args.gamma",
            "algorithm.advantage_fn_args.lam",
            "algorithm.advantage_fn_args.unit",
            "algorithm.bypass_old_logprobs",
            "algorithm.loss_agg_mode",
            "algorithm.policy_loss_fn",
            "optimizer.betas",
            "optimizer.weight_decay",
            "policy_loss_fn_args.clip_range_low",
            "policy_loss_fn_args.clip_range_high",
            "policy_loss_fn_args.clip_ratio_c",
            "trainer.critic.cliprange_value",
            "trainer.critic.loss_agg_mode",
            "trainer.use_dynamic_bsz",
            "grad_clip",
        ),
        "veRL's default, written out",
    ),
}
"""What the converter writes beyond the guide's files, and why."""
