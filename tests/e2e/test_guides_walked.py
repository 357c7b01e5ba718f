"""Trinity-RFT's FAQ from top to bottom, as a new user types it in an empty folder."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, Launch
from tests.support.guides import READ_EXPERIENCES

pytestmark = [pytest.mark.timeout(2400), pytest.mark.thorough]

CONFIG = """
project: guides
name: walked
checkpoint_root_dir: ${{oc.env:TRINITY_CHECKPOINT_ROOT_DIR,./checkpoints}}
mode: both
model:
  model_path: ${{oc.env:MODEL_PATH}}
  max_prompt_tokens: 26
  max_response_tokens: 6
algorithm: {{algorithm_type: GRPO, repeat_times: 4}}
buffer:
  batch_size: 4
  total_steps: 2
  default_workflow_type: 'shop_workflow'
  default_reward_fn_type: 'exact_match_reward'
  explorer_input:
    taskset:
      name: sums
      storage_type: file
      path: ${{oc.env:TRINITY_TASKSET_PATH}}
      split: train
      format: {{prompt_key: 'question', response_key: 'answer'}}
      rollout_args: {{temperature: 1.0}}
    eval_tasksets:
    - name: held_out
      path: {root}/few.jsonl
      format: {{prompt_key: 'question', response_key: 'answer'}}
  trainer_input:
    experience_buffer:
      name: sums_buffer
      storage_type: queue
      path: sqlite:///sums_buffer.db
      max_read_timeout: 1800
explorer:
  runner_per_model: 8
  eval_on_startup: false
  rollout_model: {{engine_type: vllm_async, dtype: float32, enforce_eager: true}}
trainer: {{trainer_type: 'verl', save_interval: 2, dtype: float32}}
synchronizer: {{sync_method: 'checkpoint', sync_interval: 1, sync_timeout: 1200}}
log: {{level: DEBUG}}
"""
PLUGIN = """
from trinity.common.workflows import WORKFLOWS
from trinity.common.workflows.workflow import SimpleWorkflow


@WORKFLOWS.register_module("shop_workflow")
class Shop(SimpleWorkflow):
    def run(self):
        self.logger.info("asked for %s", self.task.task_desc)
        self.logger.debug("in detail")
        return super().run()
"""
COUNT_EXPERIENCES = READ_EXPERIENCES + "print(sess.query(ExperienceModel).count())\n"
LOAD_CHECKPOINT = """
import os
from transformers import AutoTokenizer, AutoModelForCausalLM
from trinity.common.models.utils import load_fsdp_state_dict_from_verl_checkpoint

model_path, checkpoint_root_dir = os.environ["MODEL_PATH"], "checkpoints"
project, name = "guides", "walked"
model = AutoModelForCausalLM.from_pretrained(model_path)
ckp_path = os.path.join(checkpoint_root_dir, project, name, "global_step_2", "actor")
print(model.load_state_dict(load_fsdp_state_dict_from_verl_checkpoint(ckp_path)))
"""
LOGS = {
    "explorer.log": (
        r"explore step began step=1",
        r"explore step ended step=2 seconds=.* reward_mean=",
        r"evaluation ended version=2 taskset=held_out .* accuracy=",
        r"weights loaded version=1",
        r" DEBUG ",
    ),
    "trainer.log": (
        r"train step began step=1",
        r"train step ended step=2 .*actor/entropy=",
        r"weights published step=2",
        r"checkpoint saved step=2",
    ),
}
REMEDIES = (
    "buffer.total_steps=3",
    "trainer.max_token_len_per_gpu=64",
    "trainer.trainer_config.actor_rollout_ref.actor.entropy_from_logits_with_chunking=true",
    "explorer.rollout_model.gpu_memory_utilization=0.5",
)
"""More steps, and what the FAQ names against a lack of memory, as far as a machine without GPUs has
it: parallel sizes need GPUs."""


class Shell:
    """A terminal in a folder that is empty but for the user's files."""

    def __init__(self, folder: Path, made: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "MODEL_PATH": str(made / "model"),
            "TRINITY_TASKSET_PATH": str(made / "data"),
            "RAY_DEDUP_LOGS": "0",
        }
        folder.mkdir()
        (folder / "walk.yaml").write_text(CONFIG.format(root=made.parent))
        (folder / "plugins").mkdir()
        (folder / "plugins" / "shop.py").write_text(PLUGIN)

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """A command of `trinity` that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "trinity.cli.main", *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, *words: str, code: int = 0) -> str:
        """A command of `trinity`, to its end; returns what it says."""
        process = self.start(*words)
        said, _ = process.communicate()
        assert process.returncode == code, said
        assert "Traceback" not in said, said
        return said

    def python(self, program: str) -> str:
        """A program of the FAQ."""
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def test_the_faq_is_walked_from_top_to_bottom(launch: Launch, tmp_path: Path) -> None:
    made = launch("walked").config.parent / "made"
    shell = Shell(tmp_path / "empty", made)
    job = shell.folder / "checkpoints" / "guides" / "walked"
    look_at_studio(shell)
    assert "error" not in shell.type("config", "check", "walk.yaml", "--plugin-dir", "plugins")
    said = shell.type("run", "--config", "walk.yaml", "--plugin-dir", "plugins")
    assert "2 train steps on 32 experiences" in said
    assert (job / "monitor" / "tensorboard").is_dir()
    look_at_logs(job / "log")
    experiences = shell.python(COUNT_EXPERIENCES)
    assert experiences.count("exp.prompt_text='") == 4
    assert experiences.endswith("\n32\n")
    assert "All keys matched" in shell.python(LOAD_CHECKPOINT)
    look_at_debug(shell)
    goes_on_with_remedies(shell, job)
    assert shell.python(COUNT_EXPERIENCES).endswith("\n48\n")


def look_at_studio(shell: Shell) -> None:
    studio = shell.start("studio", "--port", "0")
    assert studio.stdout is not None
    try:
        address = re.search(r"http://127\.0\.0\.1:\d+/\S*", studio.stdout.readline())
        assert address is not None
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(address[0], timeout=60) as page:
            assert page.status == 200
    finally:
        studio.send_signal(signal.SIGINT)
        studio.communicate()


def look_at_logs(log: Path) -> None:
    for name, lines in LOGS.items():
        text = (log / name).read_text()
        assert [line for line in lines if not re.search(line, text)] == [], text
    runners = "".join(file.read_text() for file in sorted(log.glob("explorer_runner_*.log")))
    assert "asked for " in runners
    assert "in detail" in runners


def look_at_debug(shell: Shell) -> None:
    typed = ("debug", "--config", "walk.yaml", "--module")
    engine = shell.start(*typed, "inference_model")
    assert engine.stdout is not None
    try:
        while "Ctrl+C" not in (line := engine.stdout.readline()):
            assert line, "the engine ended"
        tried = shell.type(
            *(*typed, "workflow", "--output-file", "made.jsonl", "--plugin-dir", "plugins")
        )
        assert "asked for " in tried
        assert "4 runs, 0 failed, 4 experiences" in tried
        rows = (shell.folder / "made.jsonl").read_text().splitlines()
        assert [len(json.loads(row)["action_mask"]) > 0 for row in rows] == [True] * 4
    finally:
        engine.send_signal(signal.SIGINT)
        engine.communicate()


def goes_on_with_remedies(shell: Shell, job: Path) -> None:
    compared = shell.type(
        "config", "diff", "walk.yaml", str(job), *REMEDIES, "--plugin-dir", "plugins", code=1
    )
    assert "changes the experiment" not in compared
    said = shell.type("run", "walk.yaml", "--plugin-dir", "plugins", *REMEDIES)
    assert "goes on with `trainer.max_token_len_per_gpu: 64`" in said
    assert "[main] step 3/3" in said
