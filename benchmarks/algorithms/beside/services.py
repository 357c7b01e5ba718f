"""The same training through the services, with vLLM for rollouts: `trinity run` on the same start.

Its seconds are by the clock, from the opening of the stage; explorer and trainer take turns, and
evaluations run meanwhile. Training on pairs has no explorer: its checkpoints are evaluated in
`mode: bench` afterwards.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from benchmarks.algorithms.beside.course import SERVICES, Course
from benchmarks.algorithms.beside.ours import EVAL_INTERVAL, NUM_ROWS, trial_of
from benchmarks.algorithms.data import COLUMNS as PAIR_COLUMNS
from benchmarks.algorithms.job import COLUMNS, TrialJob
from benchmarks.algorithms.tasks import HINT_TEMPLATE, last_part_reward
from benchmarks.algorithms.trials import Trial

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
    trial = trial_of(algorithm, model)
    name = f"{algorithm}-{seed}-{num_steps}"
    config = job.work / f"{name}.yaml"
    values = config_values(job, trial, model, name, seed=seed, num_steps=num_steps)
    OmegaConf.save(OmegaConf.create(dict(values)), config)
    before = _processor_seconds()
    _run(config, environment)
    if trial.is_on_data:
        _run(config, environment, "mode=bench", "buffer.total_steps=null")
    job_dir = job.work / "checkpoints/beside" / name
    (evaluated,) = (job_dir / "bench").iterdir() if trial.is_on_data else (job_dir,)
    accuracies = read_accuracies(evaluated)
    return Course(
        contender=SERVICES,
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


def _run(config: Path, environment: Mapping[str, str], *overrides: str) -> None:
    log = config.with_suffix(".log")
    command = [sys.executable, "-m", "trinity.cli.main", "run", "--config", str(config), *overrides]
    with log.open("ab") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out, env=dict(environment))
    if done.returncode != 0:
        raise RuntimeError(f"{config.stem} ended with {done.returncode}; see {log}")


def config_values(
    job: TrialJob, trial: Trial, model: str, name: str, *, seed: int, num_steps: int
) -> Mapping[str, object]:
    """Returns the YAML: the addition example's second stage, from the common start."""
    on_data, num_passes = trial.is_on_data, 1 if job.task is None else job.task.num_passes
    return {
        "project": "beside",
        "name": name,
        "seed": seed,
        "checkpoint_root_dir": str(job.work / "checkpoints"),
        "mode": "train" if on_data else "both",
        "algorithm": dict(trial.algorithm),
        "model": {
            "model_path": str(job.start),
            "max_prompt_tokens": job.max_prompt_tokens,
            "max_response_tokens": job.max_response_tokens,
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
        "trainer": {
            "dtype": "float32",
            "max_token_len_per_gpu": 8192,
            "save_interval": EVAL_INTERVAL[model] if on_data else 0,
            "max_checkpoints_to_keep": num_steps,
            "ppo_epochs": 1 if on_data else num_passes,
        },
        "synchronizer": {"sync_interval": 1, "sync_offset": 0},
        "buffer": {
            "total_steps": num_steps,
            **(_pairs(job, model) if on_data else _problems(job, trial, model)),
        },
    }


def _taskset(job: TrialJob, split: str) -> dict[str, object]:
    path = job.work / f"made/data/{split}.jsonl"
    return {"name": split, "path": str(path), "format": COLUMNS}


def _evaluated(job: TrialJob) -> dict[str, object]:
    """Returns how held-out problems are answered: as in `benchmarks.algorithms.play`."""
    reward = f"{last_part_reward.__module__}.{last_part_reward.__name__}"
    temperature = 0.0 if job.task is None else 1.0
    return {
        "default_workflow_type": "simple_workflow",
        "default_reward_fn_type": "exact_match_reward" if job.task is None else reward,
        "eval_tasksets": [{**_taskset(job, "test"), "rollout_args": {"temperature": temperature}}],
    }


def _problems(job: TrialJob, trial: Trial, model: str) -> dict[str, object]:
    taskset = _taskset(job, "train")
    if job.hinted_prompts is not None:
        taskset["default_workflow_type"] = "self_distill_workflow"
        taskset["workflow_args"] = {"hint_template": HINT_TEMPLATE}
        taskset["rollout_args"] = {"temperature": 1.0}
    return {
        "batch_size": NUM_ROWS[model] // trial.algorithm["repeat_times"],
        "explorer_input": {**_evaluated(job), "taskset": taskset},
    }


def _pairs(job: TrialJob, model: str) -> dict[str, object]:
    """Each pair is two rows."""
    path = str(job.work / "made/data/train.jsonl")
    columns = {"prompt_type": "plaintext", **PAIR_COLUMNS["dpo"]}
    rows = {"name": "pairs", "storage_type": "file", "path": path, "format": columns}
    return {
        "train_batch_size": NUM_ROWS[model] // 2,
        "trainer_input": {"experience_buffer": rows},
        "explorer_input": _evaluated(job),
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
