"""The addition example end to end: time, accuracy, repeatability, memory.

python -m benchmarks.main_job [--seeds 1 2 3] [--json benchmarks/results/main_job.json]

Runs `trinity run` as a user would: once a seed, then the first seed again, then again with the
trainer killed in the middle and once more with the whole run killed and resumed. Prints each figure
with the limit it is held against.
"""

import argparse
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from omegaconf import OmegaConf

from benchmarks.table import PerformanceClaim, print_claims
from tests.support.ranks import ranks_of

POLL_SECONDS = 0.25
RUN_SECONDS = 1200
ROOT = Path(__file__).resolve().parent.parent
KILL_AT_STEP = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditionResult:
    """The result of a run."""

    seconds_total: float
    seconds_start: float
    seconds_to_first_batch: float
    first_accuracy: float
    final_accuracy: float
    buffer_mb: float
    weights_blake3: str
    rewards: tuple[float, ...]

    def as_json(self) -> dict[str, object]:
        """Returns the figures for the committed results; the curve is kept as its hash."""
        values = asdict(self)
        curve = json.dumps(values.pop("rewards"))
        return {**values, "rewards_sha256": hashlib.sha256(curve.encode()).hexdigest()}


class AdditionRun:
    """`trinity run` on the addition example with its own seed and name."""

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
        ranks = ranks_of(pid)
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
            weights_blake3=self._final_weights(last_stage["name"]),
            rewards=tuple(last_stage["rewards"]),
        )

    def _final_weights(self, stage: str) -> str:
        directories = (self.job_dir / "stages" / stage / "weights").glob("v*-*")
        newest = max(directories, key=lambda path: [int(n) for n in path.name[1:].split("-")])
        return str(json.loads((newest / "manifest.json").read_text())["weights_blake3"])


def _accuracy(evaluation: dict[str, dict[str, dict[str, float]]]) -> float:
    metrics = evaluation["metrics"]
    return metrics.get("accuracy", metrics["reward"])["mean"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/main_job.json")
    parser.add_argument("--work", type=Path, help="keep the files of the runs in this directory")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        outcomes = measure(work, arguments.seeds)
    claims = judge(outcomes, arguments.seeds)
    print_claims(claims)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "claims": [claim.as_json() for claim in claims],
        "runs": {name: outcome.as_json() for name, outcome in outcomes.items()},
    }
    arguments.json.write_text(json.dumps(record, indent=2) + "\n")


def measure(work: Path, seeds: list[int]) -> dict[str, AdditionResult]:
    """All runs, by name."""
    first = seeds[0]
    outcomes = {
        f"seed {seed}": AdditionRun(ROOT, work, f"seed-{seed}", seed).execute() for seed in seeds
    }
    outcomes["same seed again"] = AdditionRun(ROOT, work, "again", first).execute()
    outcomes["trainer killed"] = AdditionRun(ROOT, work, "trainer-killed", first).execute(
        kill_rank_at=KILL_AT_STEP
    )
    outcomes["run killed"] = AdditionRun(ROOT, work, "run-killed", first).execute(
        kill_run_at=KILL_AT_STEP
    )
    return outcomes


def judge(outcomes: dict[str, AdditionResult], seeds: list[int]) -> list[PerformanceClaim]:
    """The figures with their limits."""
    plain = [outcomes[f"seed {seed}"] for seed in seeds]
    reference = plain[0]
    claims = [
        PerformanceClaim(
            "both stages, seconds (median)", _median(o.seconds_total for o in plain), 300, "<="
        ),
        PerformanceClaim(
            "stack without engines, seconds", _median(o.seconds_start for o in plain), 5, "<="
        ),
        PerformanceClaim(
            "first rollout after the stage starts, seconds",
            max(o.seconds_to_first_batch for o in plain),
            45,
            "<=",
        ),
        PerformanceClaim("memory of the buffer, MB", max(o.buffer_mb for o in plain), 250, "<="),
    ]
    for seed, outcome in zip(seeds, plain, strict=True):
        claims.append(
            PerformanceClaim(f"accuracy at start, seed {seed}", outcome.first_accuracy, 0.5, ">=")
        )
        claims.append(
            PerformanceClaim(f"accuracy at start, seed {seed}", outcome.first_accuracy, 0.75, "<=")
        )
        claims.append(
            PerformanceClaim(f"accuracy at end, seed {seed}", outcome.final_accuracy, 0.85, ">=")
        )
    for name in ("same seed again", "trainer killed", "run killed"):
        other = outcomes[name]
        same_weights = float(other.weights_blake3 == reference.weights_blake3)
        same_rewards = float(other.rewards == reference.rewards)
        claims.append(PerformanceClaim(f"same weights: {name}", same_weights, 1, ">="))
        claims.append(PerformanceClaim(f"same reward curve: {name}", same_rewards, 1, ">="))
    return claims


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    main()
