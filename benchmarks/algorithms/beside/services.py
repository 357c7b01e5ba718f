"""The same training through the services, with vLLM for rollouts: `trinity run` on the same start.

Its seconds are by the clock, from the opening of the stage; explorer and trainer take turns, and
evaluations run beside them.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.algorithms.beside.course import Course
from benchmarks.algorithms.beside.ours import EVAL_INTERVAL, NUM_ROWS, trial_of
from benchmarks.algorithms.job import COLUMNS, MAX_PROMPT_TOKENS, MAX_RESPONSE_TOKENS, TrialJob

ROOT = Path(__file__).resolve().parents[3]


def service_course(
    *,
    job: TrialJob,
    algorithm: str,
    model: str,
    seed: int,
    num_steps: int,
    environment: Mapping[str, str],
) -> Course:
    """Runs to the end.

    Raises: RuntimeError naming the log.
    """
    name = f"{algorithm}-{seed}-{num_steps}"
    config = job.work / f"{name}.yaml"
    values = config_values(job, algorithm, model, name, seed=seed, num_steps=num_steps)
    OmegaConf.save(OmegaConf.create(dict(values)), config)
    log = job.work / f"{name}.log"
    command = [sys.executable, "-m", "trinity.cli.main", "run", "--config", str(config)]
    before = _processor_seconds()
    with log.open("wb") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, env=dict(environment))
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}; see {log}")
    job_dir = job.work / "checkpoints/beside" / name
    accuracies = read_accuracies(job_dir)
    return Course(
        contender="the services, with vLLM",
        algorithm=algorithm,
        model=model,
        seed=seed,
        num_rows=NUM_ROWS[model],
        start=accuracies.pop(0),
        accuracies=accuracies,
        seconds={},
        wall_seconds=read_seconds(job_dir, list(accuracies)),
        whole_seconds=round(_processor_seconds() - before, 1),
    )


def config_values(
    job: TrialJob, algorithm: str, model: str, name: str, *, seed: int, num_steps: int
) -> Mapping[str, object]:
    """Returns the YAML: the addition example's second stage, from the common start."""
    settings = dict(trial_of(algorithm, model).algorithm)
    data = {
        split: {
            "name": split,
            "path": str(job.work / f"made/data/{split}.jsonl"),
            "format": COLUMNS,
        }
        for split in ("train", "test")
    }
    repeat = settings["repeat_times"]
    return {
        "project": "beside",
        "name": name,
        "seed": seed,
        "checkpoint_root_dir": str(job.work / "checkpoints"),
        "mode": "both",
        "algorithm": settings,
        "model": {
            "model_path": str(job.start),
            "max_prompt_tokens": MAX_PROMPT_TOKENS,
            "max_response_tokens": MAX_RESPONSE_TOKENS,
        },
        "explorer": {
            "runner_per_model": 256,
            "eval_interval": EVAL_INTERVAL[model],
            "rollout_model": {
                "dtype": "float32",
                "enforce_eager": True,
                "extra_engine_args": {"max_num_seqs": 256},
            },
        },
        "trainer": {"dtype": "float32", "max_token_len_per_gpu": 8192, "save_interval": 0},
        "synchronizer": {"sync_interval": 1, "sync_offset": 0},
        "buffer": {
            "batch_size": NUM_ROWS[model] // repeat,
            "total_steps": num_steps,
            "explorer_input": {
                "default_workflow_type": "simple_workflow",
                "default_reward_fn_type": "exact_match_reward",
                "taskset": data["train"],
                "eval_tasksets": [{**data["test"], "rollout_args": {"temperature": 0.0}}],
            },
        },
    }


def read_accuracies(job_dir: Path) -> dict[int, float]:
    """Returns the held-out accuracy by version; 0 is the start."""
    summary = json.loads((job_dir / "summary.json").read_text())
    done: list[dict[str, Any]] = summary["stages"][-1]["evaluations"]
    return {each["version"]: _accuracy(each["metrics"]) for each in done}


def _accuracy(metrics: dict[str, dict[str, float]]) -> float:
    return metrics.get("accuracy", metrics["reward"])["mean"]


def read_seconds(job_dir: Path, steps: list[int]) -> dict[int, float]:
    """Returns the seconds from the opening of the stage to the end of these train steps."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    summary = json.loads((job_dir / "summary.json").read_text())
    (folder,) = (job_dir / "monitor/tensorboard").rglob("*_trainer")
    points = EventAccumulator(str(folder), {"scalars": 0}).Reload().Scalars("time/train_step")
    first = points[0]
    opened = first.wall_time - first.value - summary["stages"][-1]["seconds_to_first_batch"]
    ended = {point.step: point.wall_time for point in points}
    return {step: round(ended[step] - opened, 1) for step in steps if step in ended}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
