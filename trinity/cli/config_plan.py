"""`trinity config plan`: placement, volume and estimated memory of an experiment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from trinity.cli.counting import counted
from trinity.cli.plan_memory import memory_lines
from trinity.config.check import check_file
from trinity.config.data_files import find_data_files
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.plan.task_storage import count_rows
from trinity.config.schema.base import Status
from trinity.errors import UserError
from trinity.sizing.demand import demand_of, machines_of
from trinity.sizing.memory import GIB
from trinity.sizing.placement import Seat, place
from trinity.sizing.volume import Volume, volume_of

FEW = 8
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment's YAML file.")]
GpuMemoryOption = Annotated[
    float | None,
    typer.Option("--gpu-memory", min=1, help="GiB of each GPU, such as 80.", show_default=False),
]
ModelConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--model-config",
        help="The model's config.json, if not in its directory.",
        show_default=False,
    ),
]
RowsOption = Annotated[
    int | None,
    typer.Option(
        "--rows", min=1, help="Rows of the data, if it is not on this machine.", show_default=False
    ),
]


def plan(
    file: FileArgument,
    gpu_memory: GpuMemoryOption = None,
    model_config: ModelConfigOption = None,
    rows: RowsOption = None,
) -> None:
    """Show what would run where; starts nothing, and reads only the config.json of the model.

    Memory is an estimate, not a measurement.
    """
    experiment = _planned(file)
    print(f"{experiment.label} in {experiment.job_dir}")
    gpu_bytes = None if gpu_memory is None else int(gpu_memory * GIB)
    for stage in experiment.stages:
        what = "" if stage.mode == "serve" else f", {stage.algorithm_type}"
        print(f"\nstage {stage.index + 1}: {stage.name} (mode {stage.mode}{what})")
        for line in _placement_lines(stage):
            print(f"  {line}")
        for line in _volume_lines(stage, rows):
            print(f"  {line}")
        for line in memory_lines(stage, model_config, gpu_bytes):
            print(f"  {line}")


def _planned(file: Path) -> ExperimentPlan:
    """Plans a file without its planned keys, which are printed."""
    report = check_file(file)
    if report.plan is None:
        reason = f"{file} cannot be planned yet: see `trinity config check {file}`"
        raise UserError("\n".join(report.mistakes) or reason)
    for notice in report.notices:
        if notice.status is Status.PLANNED:
            print(f"without what is planned: {notice} {notice.place}")
    for text in report.advice:
        print(f"advice: {text}")
    return report.plan


def _placement_lines(stage: StagePlan) -> Iterator[str]:
    seats = place(machines_of(stage), demand_of(stage))
    yield "processes          ports of the loopback, free ones chosen at the start"
    yield "  postgres         1, unless TRINITY_POSTGRES_DSN names one that runs"
    yield "  nats             2, unless TRINITY_NATS_URL names one that runs"
    yield "  synchronizer     1"
    yield "  buffer           1"
    if stage.needs_training:
        yield "  trainer          1, and 1 on which its ranks meet"
        yield from _seat_lines([seat for seat in seats if seat.name.startswith("rank")])
    if stage.needs_rollout:
        yield "  explorer         1"
        yield from _seat_lines([seat for seat in seats if not seat.name.startswith("rank")])
    if stage.mode == "serve":
        explorer = stage.config.explorer
        yield f"  listens on       {explorer.listen_address}:{explorer.proxy_port}"


def _seat_lines(seats: list[Seat]) -> Iterator[str]:
    """Yields a line per seat; of many, only the first and the last."""
    shown = seats if len(seats) <= FEW else [seats[0], seats[-1]]
    for position, seat in enumerate(shown):
        where = ", ".join(f"GPU {gpu}" for gpu in seat.gpus) or "the processor"
        yield f"    {seat.name:18} {where}"
        if position == 0 and len(shown) < len(seats):
            yield f"    ... {len(seats) - 2} more"


def _volume_lines(stage: StagePlan, rows: int | None) -> Iterator[str]:
    if stage.mode == "serve":
        yield "volume             all requests that arrive"
        return
    volume = volume_of(stage, rows or _rows(stage))
    yield "volume"
    if volume is None:
        yield "  depends on the data, which is not on this machine: give its size with --rows"
        return
    if stage.needs_rollout:
        yield from _rollout_lines(stage, volume)
    if volume.train_steps:
        yield (
            f"  {volume.train_steps:,} train steps of {stage.train_batch_size:,} rows: "
            f"{volume.trained_rows:,} rows, at most {volume.trained_tokens:,} tokens"
        )
    if volume.evaluations:
        what = counted(len(stage.eval_tasksets), "taskset")
        yield f"  {counted(volume.evaluations, 'evaluation')} of {what}"


def _rollout_lines(stage: StagePlan, volume: Volume) -> Iterator[str]:
    batch, repeat = stage.config.buffer.batch_size, stage.algorithm.repeat_times
    yield (
        f"  {volume.explore_steps:,} explore steps of {batch:,} tasks x {repeat} rollouts: "
        f"{volume.tasks:,} tasks, {volume.experiences:,} experiences"
    )
    yield (
        f"  at most {volume.rollout_tokens:,} tokens rolled out, "
        f"{stage.max_prompt_tokens:,} + {stage.max_response_tokens:,} each"
    )


def _rows(stage: StagePlan) -> int | None:
    source = stage.taskset or stage.experience_buffer
    if source.path is None or source.storage_type != "file":
        return None
    try:
        return count_rows(find_data_files(source.path, source.split, source.subset_name))
    except (UserError, OSError):
        return None
