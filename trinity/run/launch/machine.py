"""This machine for a run: room on its disk, GPUs or processors, and servers that a plan names."""

import http.client
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from trinity.config.checks.packages import missing_packages
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan, keeps_best
from trinity.config.sizing.model_shape import count_parameters, read_shape
from trinity.errors import UserError
from trinity.run.launch.modes import server_urls
from trinity.run.local.gpu_claims import GpuClaims

MEBIBYTE = 2**20
INFRASTRUCTURE_BYTES = 640 * MEBIBYTE
"""The database when it is new, its log of changes, and the least that the broker works with."""
BYTES_PER_PARAMETER = 14
"""A checkpoint with Adam's two moments, all in float32, and one version of the weights in half of
that precision: the least that is there at the same time."""
BEST_BYTES_PER_PARAMETER = 2
"""A version that stays because it is among the best."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
SLURM_GPUS = "SLURM_JOB_GPUS"
THREADS = "OMP_NUM_THREADS"
SLEEPING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "20000"}
"""Idle threads sleep, but only after a short spin: within a parallel loop the next work comes in
microseconds, which is less than the time to wake a thread."""
DRIVER = Path("/dev/nvidiactl")
ANSWER_SECONDS = 3.0
HEALTH = "/health"


def check_disk(plan: ExperimentPlan) -> None:
    """Checks the disk of the run's directory.

    Raises: UserError when not even the first checkpoint would fit.
    """
    folder = plan.job_path
    held = _size_of(folder / "infra")
    needed = max(0, INFRASTRUCTURE_BYTES - held) + max(map(_checkpoint_bytes, plan.stages))
    free = shutil.disk_usage(_existing(folder)).free
    if free >= needed:
        return
    raise UserError(
        f"the disk of {folder} has {free // MEBIBYTE:,} MiB free, and this run needs "
        f"{-(-needed // MEBIBYTE):,} MiB at least, for its database, its broker and the first "
        "checkpoint: make room there, or choose another `checkpoint_root_dir`"
    )


def _checkpoint_bytes(stage: StagePlan) -> int:
    """Returns the size of a checkpoint; 0 without checkpoints or before the model is here."""
    if not stage.needs_training or stage.lora is not None:
        return 0
    try:
        directory = local_model_directory(stage.model_path)
        if directory is None or not (directory / "config.json").exists():
            return 0
        num_best = stage.config.trainer.keep_best if keeps_best(stage) else 0
        num_bytes = BYTES_PER_PARAMETER + BEST_BYTES_PER_PARAMETER * num_best
        return num_bytes * count_parameters(read_shape(directory / "config.json"))
    except UserError:
        return 0


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


def _size_of(folder: Path) -> int:
    """Returns the bytes of all files below a directory; files may go meanwhile."""
    total = 0
    for path in folder.rglob("*") if folder.is_dir() else ():
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total


def check_gpus(plan: ExperimentPlan) -> None:
    """Checks that this machine has the GPUs that the plan needs.

    Raises: UserError when it has not.
    """
    wanted = plan.stages[0].config.cluster.gpu_per_node
    if not wanted:
        return
    if not DRIVER.exists():
        raise UserError(
            f"`cluster.gpu_per_node: {wanted}` needs GPUs, and this machine has no NVIDIA driver: "
            "run it where there are GPUs, or set it to 0"
        )
    visible, here = os.environ.get(VISIBLE), len(devices_of(plan))
    rollout, ranks = plan.num_rollout_gpus, plan.num_rank_gpus
    if (max(rollout, ranks) if plan.takes_turns else rollout + ranks) <= here:
        return
    if visible is not None:
        raise UserError(
            f"{VISIBLE} names {here} GPUs, and with `cluster.gpu_per_node: {wanted}` rollout takes "
            f"{rollout} and training {ranks}: name more of them, or lower that key"
        )
    raise UserError(
        f"rollout takes {rollout} GPUs and training {ranks}, and `trinity run` uses the {here} of "
        "this machine: set `cluster.node_num: 1`, or place the services on several machines with "
        "`trinity deploy render`"
    )


def share_gpus(plan: ExperimentPlan) -> dict[str, dict[str, str]]:
    """Returns the environments: rollout (explorer) takes the first GPUs, training the rest.

    Empty where the plan uses no GPU. A list set by the user is divided instead.
    """
    if not plan.stages[0].config.cluster.gpu_per_node:
        return {}
    devices, num_rollout = devices_of(plan), plan.num_rollout_gpus
    if plan.takes_turns:  # the trainer's device is the engine's
        return {name: {VISIBLE: devices[0]} for name in ("explorer", "trainer")}
    left = devices[num_rollout:] if plan.num_rank_gpus else []
    return {
        "explorer": {VISIBLE: ",".join(devices[:num_rollout])},
        "trainer": {VISIBLE: ",".join(left)},
    }


def claimed_gpus(plan: ExperimentPlan) -> GpuClaims | None:
    """Returns the claims on the GPUs that a run uses; a run by turns has its own for itself.

    SLURM gives each job its own GPUs, and may call them all 0.
    """
    if not plan.stages[0].config.cluster.gpu_per_node or SLURM_GPUS in os.environ:
        return None
    num_used = 1 if plan.takes_turns else plan.num_rollout_gpus + plan.num_rank_gpus
    return GpuClaims(
        devices_of(plan)[:num_used],
        alone=plan.takes_turns,
        label=plan.label,
        job_dir=plan.job_path,
    )


def take_turns(plan: ExperimentPlan) -> ExperimentPlan:
    """Returns the plan of a new run with the threads of each stage's training processes.

    If rollout and training alternate, each gets all CPUs. The number stays the same when the run is
    resumed, because sums in another order differ in their last bits.
    """
    if THREADS in os.environ or plan.stages[0].config.cluster.gpu_per_node:
        return plan
    num_cpus = len(os.sched_getaffinity(0))
    stages = []
    for stage in plan.stages:
        if stage.needs_training and not (stage.needs_rollout and stage.is_asynchronous):
            num_threads = max(1, num_cpus // stage.trainer_rank_num)
            stage = stage.model_copy(update={"num_threads": num_threads})
        stages.append(stage)
    return plan.model_copy(update={"stages": tuple(stages)})


def share_processors(plan: ExperimentPlan) -> dict[str, dict[str, str]]:
    """Returns the environments of services that alternate in using all CPUs.

    Idle threads sleep soon, as spinning would take CPU time from the other service. Engines have
    one thread each if rollout and training run concurrently in any stage.
    """
    shared = [stage for stage in plan.stages if stage.num_threads is not None]
    if not shared:
        return {}
    rolling = [_engine_threads(stage) for stage in plan.stages if stage.needs_rollout]
    engines = min(rolling, default=0)
    explorer = {**SLEEPING, THREADS: str(engines)} if engines else {}
    return {"trainer": SLEEPING, **({"explorer": explorer} if explorer else {})}


def _engine_threads(stage: StagePlan) -> int:
    num_threads = (stage.num_threads or 0) * stage.trainer_rank_num
    if not num_threads:
        return 0
    return max(1, num_threads // stage.config.explorer.rollout_model.engine_num)


def devices_of(plan: ExperimentPlan) -> list[str]:
    """Returns the devices that the plan needs, or the fewer visible ones; -1 is no device."""
    num_gpus = plan.stages[0].config.cluster.gpu_per_node
    visible = os.environ.get(VISIBLE)
    if visible is None:
        return [str(i) for i in range(num_gpus)]
    named = [name.strip() for name in visible.split(",")]
    return [name for name in named if name not in ("", "-1")][:num_gpus]


def what_is_missing(plan: ExperimentPlan) -> Iterator[str]:
    """Yields a sentence for each thing that a start on this machine would lack now."""
    try:
        check_gpus(plan)
    except UserError as error:
        yield str(error)
    yield from missing_packages(plan)
    services = ((stage, stage.config.service.data_juicer) for stage in plan.stages)
    asked = (stage for stage, started in services if not (started and started.auto_start))
    for url in dict.fromkeys(url for stage in asked for url in server_urls(stage, "data_juicer")):
        if why := _why_no_answer(url):
            yield (
                f"Data-Juicer's server at {url} does not answer ({why}): start "
                "`python -m trinity.user_code.data_juicer.server`, or correct "
                "`service.data_juicer.server_url`"
            )


def _why_no_answer(url: str) -> str:
    """Returns why a server does not answer; empty if it does, whatever it says."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{HEALTH}")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    finally:
        connection.close()
    return ""
