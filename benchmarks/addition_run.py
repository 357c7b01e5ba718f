"""One run of the addition example from outside: start it, kill parts of it, read the end."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from omegaconf import OmegaConf

POLL_SECONDS = 0.25
RUN_SECONDS = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionResult:
    """The result of a run."""

    seconds_total: float
    seconds_start: float
    seconds_to_first_batch: float
    first_accuracy: float
    final_accuracy: float
    buffer_mb: float
    weights_sha256: str
    rewards: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        """Returns the figures for the committed results; the curve is kept as its hash."""
        values = asdict(self)
        curve = json.dumps(values.pop("rewards"))
        return {**values, "rewards_sha256": hashlib.sha256(curve.encode()).hexdigest()}


class AdditionRun:
    """`trinity run` on the addition example with a seed and a name of its own."""

    def __init__(self, root: Path, work: Path, name: str, seed: int) -> None:
        self._root = root
        self._name = name
        self._seed = seed
        self._made = work / f"made-{seed}"
        self._config = work / f"{name}.yaml"
        self._checkpoints = work / "checkpoints"
        self._log = work / f"{name}.log"
        self._buffer_mb = 0.0

    @property
    def job_dir(self) -> Path:
        """The directory in which the run leaves its files."""
        config = OmegaConf.load(self._config)
        return self._checkpoints / str(config.project) / self._name

    def execute(
        self, *, kill_rank_at: int | None = None, kill_run_at: int | None = None
    ) -> AdditionResult:
        """Run to the end; optionally kill the trainer's rank, or everything, at a train step."""
        self._write_config()
        began = time.monotonic()
        process = self._start()
        if kill_run_at is not None:
            self._wait_for_step(process, kill_run_at)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = self._start()
        elif kill_rank_at is not None:
            self._wait_for_step(process, kill_rank_at)
            self._kill_rank()
        self._wait(process)
        return self._outcome(time.monotonic() - began)

    def _write_config(self) -> None:
        prepare = ["-m", "examples.addition.prepare", "--seed", str(self._seed)]
        subprocess.run(
            [sys.executable, *prepare, "--work", str(self._made)], check=True, cwd=self._root
        )
        os.environ["TRINITY_ADDITION_WORK"] = str(self._made)
        config = OmegaConf.load(self._root / "examples/addition/addition.yaml")
        changes = {
            "name": self._name,
            "seed": self._seed,
            "checkpoint_root_dir": str(self._checkpoints),
        }
        merged = OmegaConf.merge(config, changes)
        OmegaConf.save(merged, self._config, resolve=True)

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "trinity.cli.main", "run", "--config", str(self._config)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, cwd=self._root, stdout=log, stderr=log)

    def _wait(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + RUN_SECONDS
        while process.poll() is None:
            if time.monotonic() > deadline:
                process.send_signal(signal.SIGINT)
                raise TimeoutError(f"{self._name} did not end; see {self._log}")
            self._buffer_mb = max(self._buffer_mb, self._measure_buffer())
            time.sleep(POLL_SECONDS)
        if process.returncode != 0:
            raise RuntimeError(f"{self._name} ended with {process.returncode}; see {self._log}")

    def _wait_for_step(self, process: "subprocess.Popen[bytes]", step: int) -> None:
        """Wait until the last stage has published the weights of a step."""
        stage = OmegaConf.load(self._config).stages[-1].stage_name
        weights = self.job_dir / "stages" / stage / "weights"
        while process.poll() is None:
            versions = [int(path.name[1:].split("-")[0]) for path in weights.glob("v*-*")]
            if max(versions, default=0) >= step:
                return
            time.sleep(POLL_SECONDS)
        raise RuntimeError(f"{self._name} ended before step {step}; see {self._log}")

    def _pid(self, service: str) -> int | None:
        try:
            return int(json.loads((self.job_dir / "run.json").read_text())["pids"][service])
        except (OSError, ValueError, KeyError):
            return None

    def _kill_rank(self) -> None:
        pid = self._pid("trainer")
        assert pid is not None, "the run has no trainer"
        ranks = [
            child
            for child in psutil.Process(pid).children(recursive=True)
            if "services.trainer.rank" in " ".join(child.cmdline())
        ]
        assert ranks, "the trainer has no rank"
        os.kill(ranks[0].pid, signal.SIGKILL)

    def _measure_buffer(self) -> float:
        pid = self._pid("buffer")
        try:
            return psutil.Process(pid).memory_info().rss / 1e6 if pid else 0.0
        except psutil.NoSuchProcess:
            return 0.0

    def _outcome(self, seconds: float) -> AdditionResult:
        summary = json.loads((self.job_dir / "summary.json").read_text())
        last_stage = summary["stages"][-1]
        return AdditionResult(
            seconds_total=seconds,
            seconds_start=summary["seconds"]["start"],
            seconds_to_first_batch=last_stage["seconds_to_first_batch"],
            first_accuracy=_accuracy(summary["first_evaluation"]),
            final_accuracy=_accuracy(summary["final_evaluation"]),
            buffer_mb=self._buffer_mb,
            weights_sha256=self._final_weights(last_stage["name"]),
            rewards=tuple(last_stage["rewards"]),
        )

    def _final_weights(self, stage: str) -> str:
        directories = (self.job_dir / "stages" / stage / "weights").glob("v*-*")
        newest = max(directories, key=lambda path: [int(n) for n in path.name[1:].split("-")])
        return str(json.loads((newest / "manifest.json").read_text())["weights_sha256"])


def _accuracy(evaluation: dict[str, dict[str, dict[str, float]]]) -> float:
    metrics = evaluation["metrics"]
    return metrics.get("accuracy", metrics["reward"])["mean"]
