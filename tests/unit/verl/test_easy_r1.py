"""EasyR1's scripts convert by its keys, and rewards and prompts do here what they do there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from PIL import Image

from tests.unit.verl.builders import converted, flat, missing, value
from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.config.schema.data import FormatConfig
from trinity.types import JsonObject
from trinity.verl.checkout import checkout_at
from trinity.verl.convert import Converted, convert
from trinity.verl.rules.easy_r1 import PART
from trinity.verl.settings import read_sources
from trinity.verl.work import ConversionOptions
from trinity.workflows.simple_workflow import FormattedPrompt

INPUT = "buffer.explorer_input"
BASE = """
data:
  train_files: owner/words@train
  val_files: owner/words@test
  prompt_key: problem
  image_key: images
  video_key: videos
  max_prompt_length: 1024
  rollout_batch_size: 512
  format_prompt: ask.jinja
algorithm: {use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 1.0e-2}
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
    optim: {strategy: adamw, lr_warmup_ratio: 0.1}
  rollout: {n: 5, val_override_config: {temperature: 0.6}}
  reward: {reward_function: "score.py:compute_score"}
trainer: {val_freq: 5, save_limit: -1, find_last_checkpoint: true, nnodes: 1, n_gpus_per_node: 8}
"""
ASK = "{{ content | trim }} Put the answer in \\boxed{}.\n"
SEQUENTIAL = """
REWARD_TYPE = "sequential"
def compute_score(reward_input, weight=0.1):
    right = reward_input["ground_truth"] in reward_input["response"]
    return {"overall": right - weight * reward_input["response_length"], "accuracy": right}
"""
BATCH = """
def compute_score(reward_inputs, weight=0.1):
    def score(response, response_length, ground_truth):
        right = ground_truth in response
        return {"overall": right - weight * response_length, "accuracy": right}
    return [score(**each) for each in reward_inputs]
"""
TEXTS = """
def compute_score(predicts, ground_truths, weight=0.1):
    return [{"overall": (t in r) - weight * 3, "accuracy": t in r}
            for r, t in zip(predicts, ground_truths)]
"""
CALL = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("part", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps(module.Reward()(response="b a", response_length=3, ground_truth="a")))
"""


def of_script(folder: Path, *keys: str, reward: str = BATCH) -> Converted:
    (folder / "config.yaml").write_text(BASE)
    (folder / "ask.jinja").write_text(ASK)
    (folder / "score.py").write_text(reward)
    given = " ".join(("config=config.yaml", "worker.actor.model.model_path=Qwen/Qwen3-4B", *keys))
    return converted(f"python3 -m verl.trainer.main {given}", folder)


def test_a_script_is_its_base_its_keys_and_easyr1s_defaults(tmp_path: Path) -> None:
    found = of_script(tmp_path, "data.max_response_length=3072", "worker.actor.ulysses_size=2")
    assert missing(found) == []
    held = flat(found.values)
    actual = {key: held[key] for key in EXPECTED}
    assert actual == EXPECTED
    assert f"{INPUT}.taskset.format.image_key" not in held
    assert "max_checkpoints_to_keep" not in found.body, "-1 keeps all, as without the key"


EXPECTED = {
    "model.model_path": "Qwen/Qwen3-4B",
    "model.trust_remote_code": True,
    "algorithm.algorithm_type": "grpo",
    "algorithm.kl_loss_fn": "low_var_kl",
    "algorithm.kl_loss_fn_args.kl_coef": 0.01,
    "algorithm.kl_penalty_fn": "none",
    "algorithm.policy_loss_fn_args.clip_range_high": 0.3,
    "algorithm.loss_agg_mode": "token-mean",
    "algorithm.optimizer.lr_warmup_steps_ratio": 0.1,
    "algorithm.repeat_times": 5,
    "buffer.batch_size": 128,
    "synchronizer.sync_interval": 4,
    "trainer.max_token_len_per_gpu": 2048,
    f"{INPUT}.taskset.path": "owner/words",
    f"{INPUT}.taskset.format.response_key": "answer",
    f"{INPUT}.eval_tasksets[0].split": "test",
    f"{INPUT}.eval_tasksets[0].rollout_args.temperature": 0.6,
    f"{INPUT}.default_reward_fn_type": f"{PART}.Reward",
    f"{INPUT}.default_workflow_type": f"{PART}.Ask",
    "continue_from_checkpoint": True,
    "explorer.eval_interval": 5,
}
"""A row is 1024 + 3072 tokens, shared by two GPUs."""


def test_the_kl_term_is_the_one_that_easyr1_adds(tmp_path: Path) -> None:
    rewarded = of_script(tmp_path, "algorithm.use_kl_loss=false", "algorithm.kl_penalty=kl")
    assert value(rewarded, "algorithm.kl_penalty_fn") == "k1"
    assert value(rewarded, "algorithm.kl_penalty_fn_args.kl_coef") == 0.01
    assert value(rewarded, "algorithm.kl_loss_fn") == "none"
    off = of_script(tmp_path, "algorithm.disable_kl=true")
    assert {value(off, f"algorithm.kl_{name}_fn") for name in ("loss", "penalty")} == {"none"}


def test_filters_and_losses_have_their_names_here(tmp_path: Path) -> None:
    keys = ("algorithm.online_filtering=true", "algorithm.filter_key=accuracy")
    loss = ("worker.actor.loss_type=gspo_token", "worker.actor.loss_avg_mode=seq")
    found = of_script(tmp_path, *keys, *loss, "trainer.max_try_make_batch=10")
    assert missing(found) == []
    operator = "data_processor.experience_pipeline.operators[0]"
    assert value(found, f"{operator}.name") == "group_mean_filter"
    arguments = {"metric_key": "accuracy", "lower": 0.01, "upper": 0.99}
    assert {name: value(found, f"{operator}.args.{name}") for name in arguments} == arguments
    assert value(found, "buffer.max_refill_rounds") == 10
    assert value(found, "algorithm.policy_loss_fn") == "gspo"
    assert value(found, "algorithm.loss_agg_mode") == "seq-mean-token-mean"


def test_a_key_that_is_not_easyr1s_is_named_with_its_line(tmp_path: Path) -> None:
    found = of_script(tmp_path, "worker.actor.own_loss=2")
    assert "worker.actor.own_loss=2 (run.sh:1)" in "\n".join(missing(found))
    program = tmp_path / "verl" / "trainer" / "main.py"
    program.parent.mkdir(parents=True)
    program.write_text("print(config.worker.actor.own_loss)")
    (program.parent / "core_algos.py").write_text("mine = True")
    found = of_script(tmp_path, "worker.actor.own_loss=2")
    assert "verl/trainer/main.py:1 reads it" in "\n".join(missing(found))
    assert any("`verl/trainer/core_algos.py` differs" in line for line in found.report)
    script = tmp_path / "alone" / "run.yaml"
    script.parent.mkdir()
    script.write_text(BASE + "other: {key: 1}\n")
    choices = ConversionOptions(checkout=checkout_at(tmp_path / "verl"))
    found = convert(read_sources([str(script)]), choices)
    assert found.values["name"] == "demo"
    assert any("`verl/trainer/core_algos.py` differs" in line for line in found.report)


@pytest.mark.parametrize("reward", [SEQUENTIAL, BATCH, TEXTS])
def test_a_reward_scores_as_it_does_alone(tmp_path: Path, reward: str) -> None:
    found = of_script(
        tmp_path, """'worker.reward.reward_function_kwargs={"weight":0.25}'""", reward=reward
    )
    part = tmp_path / f"{PART}.py"
    part.write_text(found.parts[part.name])
    command = [sys.executable, "-c", CALL, str(part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"score": 1 - 0.25 * 3, "accuracy": 1.0}
    (tmp_path / "score.py").write_text("changed = True")
    changed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "score.py is missing or has changed" in changed.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = of_script(tmp_path, "worker.reward.reward_function=other.py", "data.format_prompt=no.j")
    text = "\n".join(missing(found))
    assert "reward_function=other.py" in text
    assert "data.format_prompt=no.j" in text


async def test_prompts_are_the_templates_and_images_have_easyr1s_sizes(tmp_path: Path) -> None:
    keys = ("worker.actor.model.model_path=Qwen/Qwen2.5-VL-7B-Instruct", "data.max_pixels=1000000")
    found = of_script(tmp_path, *keys)
    assert value(found, f"{INPUT}.taskset.format.image_key") == "images"
    part = tmp_path / f"{PART}.py"
    part.write_text(found.parts[part.name])
    spec = importlib.util.spec_from_file_location("part", part)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = module.Ask
    assert issubclass(kind, FormattedPrompt) and not kind.is_on_loop()
    images = [Image.new("RGB", size) for size in ((100, 50), (640, 480), (4000, 3000))]
    row = {"problem": " See <image><image><image>? ", "answer": "a", "images": images}
    task = task_of(
        cast("JsonObject", row), columns=FormatConfig(prompt_key="problem", image_key="images")
    )
    for _ in range(2):  # an attempt that is repeated asks the same
        (message,) = kind(task=task, model=scripted_model(ScriptedEngine([]))).messages()
        shown = [part for part in message["content"] if part["type"] == "image"]
        assert [part["image"].size for part in shown] == [(724, 362), (640, 480), (1154, 866)]
        assert message["content"][-1]["text"] == "? Put the answer in \\boxed{}."
