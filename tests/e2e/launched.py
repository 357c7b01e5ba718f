"""`trinity run` as a user starts it, on a very short version of the addition example."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.support.ranks import ranks_of

SECONDS = 480
"""Patience with a machine that does other things as well; a run alone takes a tenth."""
POLL_SECONDS = 0.1

CONFIG = """
project: e2e
name: {name}
checkpoint_root_dir: {root}/checkpoints
seed: 5
model:
  model_path: {root}/made/model
  max_prompt_tokens: 16
  max_response_tokens: 6
explorer:
  rollout_model: {{dtype: float32, enforce_eager: true}}
trainer: {{dtype: float32}}
stages:
  - stage_name: warmup
    mode: train
    algorithm: {{algorithm_type: sft, optimizer: {{lr: 1.0e-3}}}}
    buffer:
      train_batch_size: 32
      trainer_input:
        experience_buffer:
          storage_type: file
          path: {root}/made/data/sft.jsonl
          format: {{prompt_type: plaintext, prompt_key: question, response_key: answer}}
          data_selector: {{selector_type: shuffle}}
    trainer: {{total_steps: 20, save_interval: 8}}
  - stage_name: rft
    mode: both
    algorithm: {{algorithm_type: grpo, repeat_times: 4, optimizer: {{lr: 1.0e-4}}}}
    buffer:
      batch_size: 8
      explorer_input:
        default_workflow_type: simple_workflow
        default_reward_fn_type: tests.e2e.rewards.DigitsReward
        taskset:
          path: {root}/made/data/train.jsonl
          format: {{prompt_key: question, response_key: answer}}
          data_selector: {{selector_type: shuffle}}
        eval_tasksets:
          - name: held_out
            path: {root}/few.jsonl
            format: {{prompt_key: question, response_key: answer}}
            rollout_args: {{temperature: 0.0}}
    explorer: {{eval_interval: 4}}
    trainer: {{total_steps: 8, save_interval: 3}}
"""


class Launched:
    """One experiment directory and the launchers started on it."""

    def __init__(self, root: Path, name: str, repository: Path, config: str = CONFIG) -> None:
        self._repository = repository
        self.config = root / f"{name}.yaml"
        self.config.write_text(config.format(name=name, root=root))
        self.job_dir = root / "checkpoints" / "e2e" / name
        self.output = root / f"{name}.out"
        self.reads = root / f"{name}.reads"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, **environment: str) -> None:
        """Start `trinity run`; its output goes to a file."""
        command = self.command("run", *options)
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                cwd=self._repository,
                env={**os.environ, **environment},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def command(self, name: str, *options: str) -> list[str]:
        """A command of `trinity` on this configuration."""
        return [
            sys.executable,
            "-m",
            "trinity.cli.main",
            name,
            "--config",
            str(self.config),
            *options,
        ]

    def ask(self, name: str, *options: str) -> "subprocess.CompletedProcess[str]":
        """Run a command beside the run."""
        return subprocess.run(
            self.command(name, *options), cwd=self._repository, capture_output=True, text=True
        )

    def wait(self) -> int:
        """The exit code."""
        assert self._process is not None
        return self._process.wait(SECONDS)

    def end(self) -> None:
        """Leave nothing to run when a test has failed."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self.wait_for_nothing_left()

    def signal(self, number: signal.Signals) -> None:
        """Send the launcher a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait_until(self, what: Callable[[], bool], saying: str) -> None:
        """Wait for something the running launcher brings about."""
        assert self._process is not None
        deadline = time.monotonic() + SECONDS
        while not what():
            assert self._process.poll() is None, f"ended before {saying}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {saying}:\n{self.text}"
            time.sleep(POLL_SECONDS)

    @property
    def text(self) -> str:
        """What the launchers printed."""
        return self.output.read_text()

    def pid(self, name: str) -> int:
        """Process of a service, from the run's file."""
        return int(json.loads((self.job_dir / "run.json").read_text())["pids"][name])

    def kill(self, name: str) -> None:
        """SIGKILL a process of the stack, or the rank that trains."""
        if name == "rank":
            self._kill_rank()
        else:
            os.kill(self.pid(name), signal.SIGKILL)

    def _kill_rank(self) -> None:
        ranks = ranks_of(self.pid("trainer"))
        assert ranks, "the trainer has no rank"
        os.kill(ranks[0].pid, signal.SIGKILL)

    def has_version(self, stage: str, version: int) -> bool:
        """Whether weights of this version or a later one are published."""
        found = (self.job_dir / "stages" / stage / "weights").glob("v*-*")
        return any(int(path.name[1:].split("-")[0]) >= version for path in found)

    def has_checkpoint(self, stage: str) -> bool:
        """Whether the stage has a whole checkpoint."""
        return any((self.job_dir / "stages" / stage / "checkpoints").glob("step-*/manifest.json"))

    def summary(self) -> dict[str, object]:
        """The run's `summary.json`."""
        loaded: dict[str, object] = json.loads((self.job_dir / "summary.json").read_text())
        return loaded

    def seconds(self) -> dict[str, float]:
        """The run's phases, of all its starts, and their total."""
        seconds = self.summary()["seconds"]
        assert isinstance(seconds, dict)
        return dict(seconds)

    def rewards(self) -> list[float]:
        """The reward curve of the last stage."""
        stages = self.summary()["stages"]
        assert isinstance(stages, list)
        return list(stages[-1]["rewards"])

    def final_weights(self) -> str:
        """Hash over the last version's tensors."""
        found = (self.job_dir / "stages" / "rft" / "weights").glob("v*-*")
        newest = max(found, key=lambda path: [int(n) for n in path.name[1:].split("-")])
        return str(json.loads((newest / "manifest.json").read_text())["weights_blake3"])

    def wait_for_nothing_left(self) -> None:
        """Wait until everything the launcher had started is gone."""
        deadline = time.monotonic() + SECONDS
        while left := self.left_running():
            assert time.monotonic() < deadline, left
            time.sleep(POLL_SECONDS)

    def left_running(self) -> list[str]:
        """Command lines of processes that still belong to this run."""
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
                if str(self.job_dir) in line or str(self.job_dir) in str(process.environ()):
                    found.append(line)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found
