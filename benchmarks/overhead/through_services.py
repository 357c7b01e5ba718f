"""Our figure: `trinity run` on the job, read from its TensorBoard files."""

import subprocess
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from benchmarks.overhead.job import OverheadJob
from benchmarks.overhead.steps import Steps

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "waiting for the batch": "time/read_experience",
    "training": "time/train_step",
    "weights": "time/sync_weight",
}


def measure(job: OverheadJob, name: str, **synchronizer: object) -> Steps:
    """Run to the end; a step lasts from one report to the next."""
    config = job.write_config(name, **synchronizer)
    log = job.work / f"{name}.log"
    command = [sys.executable, "-m", "trinity.cli.main", "run", "--config", str(config)]
    with log.open("wb") as out:
        done = subprocess.run(command, cwd=ROOT, stdout=out, stderr=out)
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with {done.returncode}; see {log}")
    return read_steps(job.work / "checkpoints/overhead" / name)


def read_steps(job_dir: Path) -> Steps:
    """The steps of a run, from its TensorBoard files."""
    (folder,) = (job_dir / "monitor/tensorboard").rglob("*_trainer")
    events = EventAccumulator(str(folder), {"scalars": 0}).Reload()
    times = [point.wall_time for point in events.Scalars("time/train_step")]
    parts = {name: [p.value for p in events.Scalars(tag)] for name, tag in PARTS.items()}
    steps = Steps()
    for index in range(1, len(times)):
        whole = times[index] - times[index - 1]
        shares = {name: values[index] for name, values in parts.items()}
        steps.add(whole, **shares, reporting=whole - sum(shares.values()))
    return steps
