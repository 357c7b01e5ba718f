"""Keys, commands and imports of Trinity-RFT's FAQ and guides are known, or in one table."""

import importlib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trinity.cli.main import make_app
from trinity.config.docs.explain import find_keys
from trinity.errors import UserError

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "docs/moving-in.md").read_text().partition("## What the guides tell people")[2]
KEYS = [
    "project",
    "name",
    "mode",
    "checkpoint_root_dir",
    "continue_from_checkpoint",
    "ray_namespace",
    "algorithm.algorithm_type",
    "algorithm.repeat_times",
    "algorithm.sample_strategy",
    "algorithm.advantage_fn",
    "algorithm.advantage_fn_args",
    "algorithm.kl_penalty_fn",
    "algorithm.kl_penalty_fn_args",
    "algorithm.kl_loss_fn",
    "algorithm.kl_loss_fn_args",
    "algorithm.entropy_loss_fn",
    "algorithm.entropy_loss_fn_args",
    "algorithm.optimizer.lr",
    "algorithm.optimizer.lr_warmup_steps_ratio",
    "algorithm.optimizer.weight_decay",
    "monitor.monitor_type",
    "monitor.monitor_args",
    "monitor.enable_ray_timeline",
    "model.model_path",
    "model.critic_model_path",
    "model.max_model_len",
    "model.max_prompt_tokens",
    "model.max_response_tokens",
    "model.min_response_tokens",
    "model.enable_prompt_truncation",
    "model.temperature",
    "model.top_p",
    "model.top_k",
    "model.custom_chat_template",
    "cluster.node_num",
    "cluster.gpu_per_node",
    "buffer.batch_size",
    "buffer.train_batch_size",
    "buffer.total_epochs",
    "buffer.total_steps",
    "buffer.default_workflow_type",
    "buffer.default_reward_fn_type",
    "buffer.explorer_input.default_workflow_type",
    "buffer.explorer_input.default_reward_fn_type",
    "buffer.explorer_input.taskset.name",
    "buffer.explorer_input.taskset.storage_type",
    "buffer.explorer_input.taskset.path",
    "buffer.explorer_input.taskset.split",
    "buffer.explorer_input.taskset.subset_name",
    "buffer.explorer_input.taskset.repeat_times",
    "buffer.explorer_input.taskset.rollout_args.temperature",
    "buffer.explorer_input.taskset.rollout_args.top_p",
    "buffer.explorer_input.taskset.default_workflow_type",
    "buffer.explorer_input.taskset.default_reward_fn_type",
    "buffer.explorer_input.taskset.workflow_args",
    "buffer.explorer_input.taskset.format.prompt_key",
    "buffer.explorer_input.taskset.format.response_key",
    "buffer.explorer_input.taskset.format.prompt_type",
    "buffer.explorer_input.taskset.format.system_prompt_key",
    "buffer.explorer_input.taskset.format.system_prompt",
    "buffer.explorer_input.taskset.format.messages_key",
    "buffer.explorer_input.taskset.format.tools_key",
    "buffer.explorer_input.taskset.format.chosen_key",
    "buffer.explorer_input.taskset.format.rejected_key",
    "buffer.explorer_input.taskset.format.enable_concatenated_multi_turn",
    "buffer.explorer_input.taskset.format.chat_template",
    "buffer.explorer_input.taskset.task_selector.selector_type",
    "buffer.explorer_input.tasksets.path",
    "buffer.explorer_input.eval_tasksets.path",
    "buffer.explorer_input.eval_tasksets.repeat_times",
    "buffer.trainer_input.experience_buffer.name",
    "buffer.trainer_input.experience_buffer.storage_type",
    "buffer.trainer_input.experience_buffer.path",
    "buffer.trainer_input.experience_buffer.max_read_timeout",
    "buffer.trainer_input.experience_buffer.use_priority_queue",
    "buffer.trainer_input.experience_buffer.reuse_cooldown_time",
    "buffer.trainer_input.auxiliary_buffers.path",
    "explorer.name",
    "explorer.runner_per_model",
    "explorer.max_timeout",
    "explorer.max_retry_times",
    "explorer.env_vars",
    "explorer.rollout_model.engine_type",
    "explorer.rollout_model.engine_num",
    "explorer.rollout_model.tensor_parallel_size",
    "explorer.rollout_model.enable_history",
    "explorer.rollout_model.gpu_memory_utilization",
    "explorer.auxiliary_models.model_path",
    "explorer.auxiliary_models.tensor_parallel_size",
    "explorer.auxiliary_models.max_model_len",
    "explorer.eval_interval",
    "explorer.eval_on_startup",
    "synchronizer.sync_method",
    "synchronizer.sync_interval",
    "synchronizer.sync_offset",
    "synchronizer.sync_timeout",
    "synchronizer.sync_style",
    "trainer.name",
    "trainer.trainer_type",
    "trainer.save_interval",
    "trainer.total_steps",
    "trainer.save_strategy",
    "trainer.trainer_config",
    "trainer.trainer_config_path",
    "trainer.use_dynamic_bsz",
    "trainer.max_token_len_per_gpu",
    "trainer.ppo_max_token_len_per_gpu",
    "trainer.ulysses_sequence_parallel_size",
    "trainer.grad_clip",
    "service.data_juicer.server_url",
    "service.data_juicer.auto_start",
    "service.data_juicer.port",
    "data_processor.task_pipeline.num_process",
    "data_processor.task_pipeline.operators",
    "data_processor.task_pipeline.inputs",
    "data_processor.task_pipeline.target_fields",
    "data_processor.experience_pipeline.operators",
    "log.level",
    "log.group_by_node",
    "stages.stage_name",
    "stages.mode",
]
COMMANDS = {
    "trinity studio --port 8080": ("studio",),
    "trinity run --config grpo_gsm8k/gsm8k.yaml": ("run",),
    "trinity debug --config c --module inference_model": ("debug",),
    "trinity debug --config c --module viewer --port 8502": ("debug",),
}
IMPORTS = {
    "trinity.common.schema.sql_schema": "ExperienceModel",
    "trinity.common.models.utils": "load_fsdp_state_dict_from_verl_checkpoint",
}


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_the_guides_is_known_or_in_the_table(key: str) -> None:
    in_table = f"`{key}`" in TABLE or f"`{key.rpartition('.')[2]}`" in TABLE
    assert in_table or is_known(key)


def is_known(key: str) -> bool:
    """True for a key, and for one below an older name of a section."""
    try:
        return bool(find_keys(key))
    except UserError:
        above = find_keys(key.rpartition(".")[0])
        return all(found.field is None for found in above)


def test_an_unknown_key_would_be_noticed() -> None:
    with pytest.raises(UserError):
        find_keys("buffer.trainer_input.experience_buffer.max_read_time")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guides_is_there_or_in_the_table(command: str) -> None:
    words = COMMANDS[command]
    app = make_app(words)
    known = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"]).exit_code == 0
    assert known != (f"`{command}`" in TABLE)
    if known:
        options = [word for word in command.split() if word.startswith("--")]
        told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*words, "--help"]).stdout
        assert all(option in told for option in options)


@pytest.mark.parametrize("module", IMPORTS)
def test_an_import_of_the_faq_is_there(module: str) -> None:
    assert IMPORTS[module] in vars(importlib.import_module(module))
