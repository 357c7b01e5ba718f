"""The way back gives a command that comes out the same again."""

import shlex
from pathlib import Path

import pytest

from tests.unit.verl.builders import converted, flat
from tests.unit.verl.guide import GRPO_SCRIPT, PPO_SCRIPT
from trinity.verl.back import verl_command
from trinity.verl.shell.reader import read_script

LEFT_TO_US = ("default_workflow_type", "engine_num", "sync_offset")


@pytest.mark.parametrize("script", [PPO_SCRIPT, GRPO_SCRIPT])
def test_there_and_back_and_there_again(script: str, tmp_path: Path) -> None:
    first = converted(script, tmp_path)
    again = converted(verl_command(first.yaml), tmp_path, name="again.sh")
    before, after = flat(first.values), flat(again.values)
    assert {k: v for k, v in before.items() if "fsdp_config" not in k} == {
        k: v for k, v in after.items() if "fsdp_config" not in k
    }


def test_what_has_no_way_back_is_listed(tmp_path: Path) -> None:
    text = verl_command(converted(GRPO_SCRIPT, tmp_path).yaml)
    listed = [line for line in text.splitlines() if line.startswith("#   ")]
    for name in LEFT_TO_US:
        assert any(name in line for line in listed)


def test_the_command_is_one_that_a_shell_reads(tmp_path: Path) -> None:
    text = verl_command(converted(PPO_SCRIPT, tmp_path).yaml)
    (command,) = read_script(text, "x.sh").commands
    words = [field.text for field in command.words]
    assert words[:3] == ["python3", "-m", "verl.trainer.main_ppo"]
    assert "data.train_batch_size=1024" in words
    assert 'trainer.logger=["console","wandb"]' in words
    assert "actor_rollout_ref.model.path=${oc.env:HOME}/models/Qwen2-7B-Instruct" in words
    assert shlex.split(text.partition("\n#")[0], comments=True)


def test_variables_of_the_environment_become_the_shells() -> None:
    text = verl_command("model:\n  model_path: ${oc.env:MODEL,/models/x}\n")
    assert '"actor_rollout_ref.model.path=${MODEL:-/models/x}"' in text


def test_every_key_is_told_or_listed() -> None:
    text = verl_command(
        "project: p\nalgorithm:\n  algorithm_type: rloo\n  policy_loss_fn_args: {clip_range: 0.1}\n"
        "explorer:\n  runner_per_model: 4\nbuffer:\n  batch_size: 8\nsynchronizer:\n"
        "  sync_interval: 2\n"
    )
    assert "algorithm.adv_estimator=rloo" in text
    assert "actor_rollout_ref.actor.clip_ratio=0.1" in text
    assert "data.train_batch_size=16" in text
    assert "#   explorer.runner_per_model: 4" in text


def test_rewards_filters_and_losses_come_back_as_they_were(tmp_path: Path) -> None:
    penalty = "+reward.reward_kwargs.overlong_buffer_cfg"
    given = [
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov",
        "actor_rollout_ref.actor.policy_loss.clip_cov_ub=4.0",
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.metric=acc",
        "algorithm.filter_groups.max_num_gen_batches=10",
        "reward.reward_manager.name=dapo",
        f"{penalty}.enable=True",
        f"{penalty}.len=64",
        "+reward.reward_kwargs.max_resp_len=512",
        "trainer.save_freq=20",
        "trainer.test_freq=5",
    ]
    script = f"python3 -m verl.trainer.main_ppo {' '.join(given)} data.train_files=/d/x.parquet"
    text = verl_command(converted(script, tmp_path).yaml)
    words = text.replace("\\\n", "").split()
    assert [one for one in given if one not in words] == []
    assert "data.response_key" not in text
    assert flat(converted(text, tmp_path).values) == flat(converted(script, tmp_path).values)


def test_what_verl_counts_in_its_own_steps_and_parts_comes_back_as_it_was(tmp_path: Path) -> None:
    actor = "actor_rollout_ref.actor"
    given = [
        "algorithm.adv_estimator=gae",
        "data.train_batch_size=1024",
        f"{actor}.ppo_mini_batch_size=256",
        f"{actor}.optim.lr_warmup_steps=10",
        "critic.optim.lr_warmup_steps=5",
        "trainer.critic_warmup=3",
        f"{actor}.ppo_max_token_len_per_gpu=8192",
        f"{actor}.ulysses_sequence_parallel_size=2",
    ]
    script = f"python3 -m verl.trainer.main_ppo {' '.join(given)}"
    words = verl_command(converted(script, tmp_path).yaml).replace("\\\n", "").split()
    assert [one for one in given if one not in words] == []
