"""`trinity config plan`: what would run where, how much of it, and whether its memory suffices."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from trinity.config.data_files import find_data_files
from trinity.config.data_rows import count_rows
from trinity.config.load import load_config
from trinity.config.model_files import local_model_directory
from trinity.config.plan import StagePlan
from trinity.config.planning import plan_experiment
from trinity.errors import UserError
from trinity.sizing.advice import USABLE, engine_advice, rank_advice
from trinity.sizing.memory import GIB, Term
from trinity.sizing.model_shape import ModelShape, read_shape
from trinity.sizing.parameters import count_parameters
from trinity.sizing.placement import Seat, place
from trinity.sizing.stage_sizes import (
    demand_of,
    engine_memory,
    machines_of,
    rank_memory,
    validator_settings,
)
from trinity.sizing.validator import validator_bytes, validator_limit
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
        "--model-config", help="The model's config.json, if not with it.", show_default=False
    ),
]
RowsOption = Annotated[
    int | None,
    typer.Option("--rows", min=1, help="Rows of the data, if not on hand.", show_default=False),
]


def plan(
    file: FileArgument,
    gpu_memory: GpuMemoryOption = None,
    model_config: ModelConfigOption = None,
    rows: RowsOption = None,
) -> None:
    """Say what would run where; nothing is started, and of the model its config.json alone is read.

    Memory is an estimate until somebody measures it.
    """
    experiment = plan_experiment(load_config(file))
    print(f"{experiment.label} in {experiment.job_dir}")
    gpu_bytes = None if gpu_memory is None else int(gpu_memory * GIB)
    for stage in experiment.stages:
        print(
            f"\nstage {stage.index + 1}: {stage.name} (mode {stage.mode}, {stage.algorithm_type})"
        )
        for line in _placement_lines(stage):
            print(f"  {line}")
        for line in _volume_lines(stage, rows):
            print(f"  {line}")
        for line in _memory_lines(stage, model_config, gpu_bytes):
            print(f"  {line}")


def _placement_lines(stage: StagePlan) -> Iterator[str]:
    seats = place(machines_of(stage), demand_of(stage))
    yield "processes          ports of the loopback, free ones chosen at the start"
    yield "  postgres         1, unless TRINITY_POSTGRES_DSN names one that runs"
    yield "  nats             2, unless TRINITY_NATS_URL names one that runs"
    yield "  synchronizer     1"
    yield "  buffer           1"
    yield "  trainer          1, and 1 on which its ranks meet"
    yield from _seat_lines([seat for seat in seats if seat.name.startswith("rank")])
    if stage.needs_rollout:
        yield "  explorer         1"
        yield from _seat_lines([seat for seat in seats if not seat.name.startswith("rank")])


def _seat_lines(seats: list[Seat]) -> Iterator[str]:
    """A line each, of many the first and the last."""
    shown = seats if len(seats) <= FEW else [seats[0], seats[-1]]
    for position, seat in enumerate(shown):
        where = ", ".join(f"GPU {gpu}" for gpu in seat.gpus) or "the processor"
        yield f"    {seat.name:18} {where}"
        if position == 0 and len(shown) < len(seats):
            yield f"    ... {len(seats) - 2} more"


def _volume_lines(stage: StagePlan, rows: int | None) -> Iterator[str]:
    volume = volume_of(stage, rows or _rows(stage))
    yield "volume"
    if volume is None:
        yield "  as much as the data gives, and it is not on hand: say how much with --rows"
        return
    if stage.needs_rollout:
        yield from _rollout_lines(stage, volume)
    yield (
        f"  {volume.train_steps:,} train steps of {stage.train_batch_size:,} rows: "
        f"{volume.trained_rows:,} rows, at most {volume.trained_tokens:,} tokens"
    )
    if volume.evaluations:
        yield f"  {volume.evaluations:,} evaluations of {len(stage.eval_tasksets)} taskset(s)"


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
    if source.path is None:
        return None
    try:
        return count_rows(find_data_files(source.path, source.split, source.subset_name))
    except (UserError, OSError):
        return None


def _memory_lines(
    stage: StagePlan, model_config: Path | None, gpu_bytes: int | None
) -> Iterator[str]:
    yield "memory of a GPU, an estimate until measured"
    yield "  P parameters, L layers, H their width, V vocabulary, T tokens of a micro-batch"
    shape = _shape(stage.model_path, model_config)
    if shape is None:
        yield f"  there is no config.json of {stage.model_path} here: give --model-config FILE"
        return
    about = "" if shape.is_known else f", counted as a llama: `{shape.family}` is not known exactly"
    yield f"  model            {count_parameters(shape):,} parameters{about}"
    critic = None if stage.critic_model_path is None else _shape(stage.critic_model_path, None)
    if stage.needs_rollout:
        yield from _engine_lines(stage, shape, gpu_bytes)
    if "trainer" in stage.roles:
        yield from _rank_lines(stage, shape, critic, gpu_bytes)
    if gpu_bytes is None and machines_of(stage).total:
        yield "  --gpu-memory GIB tells whether it fits"


def _shape(model_path: str, model_config: Path | None) -> ModelShape | None:
    if model_config is not None:
        return read_shape(model_config)
    try:
        directory = local_model_directory(model_path)
    except UserError:
        return None
    file = None if directory is None else directory / "config.json"
    return read_shape(file) if file is not None and file.exists() else None


def _engine_lines(stage: StagePlan, shape: ModelShape, gpu_bytes: int | None) -> Iterator[str]:
    engine = engine_memory(stage, shape, gpu_bytes or 0)
    yield "  rollout engine   on each of its GPUs"
    shown = engine.terms if gpu_bytes else engine.terms[:-1]
    yield from _term_lines(shown)
    if gpu_bytes is None or not machines_of(stage).total:
        return
    runners = stage.config.explorer.runner_per_model * stage.algorithm.repeat_times
    sequences = engine.cached_tokens // stage.max_model_len
    wanted = _wanted_cache(stage, engine.room, engine.cached_tokens)
    if sequences < 1:
        advice = engine_advice(stage, shape, gpu_bytes, wanted)
        yield f"    DOES NOT FIT: no sequence of {stage.max_model_len} tokens: {advice}"
        return
    yield (
        f"    FITS: the cache holds {engine.cached_tokens:,} tokens, {sequences:,} of the longest "
        f"sequences; up to {runners:,} run at a time"
    )


def _wanted_cache(stage: StagePlan, room: int, cached_tokens: int) -> int:
    """Bytes of one longest sequence; from the engine's own figures where it has any."""
    if cached_tokens:
        return room * stage.max_model_len // cached_tokens
    return GIB


def _rank_lines(
    stage: StagePlan, shape: ModelShape, critic: ModelShape | None, gpu_bytes: int | None
) -> Iterator[str]:
    memory = rank_memory(stage, shape, critic)
    for role, terms in memory.terms:
        yield f"  {role:16} on each of {stage.trainer_rank_num} GPU(s)"
        yield from _term_lines(terms)
    yield f"  {'together':18}   {_gib(memory.total):>10}  a pass and an optimizer step never meet"
    if gpu_bytes is None or not machines_of(stage).total:
        return
    limit = int(USABLE * gpu_bytes)
    if memory.total <= limit:
        yield f"    FITS: {_gib(memory.total)} of {_gib(limit)}, {USABLE:.0%} of a GPU"
    else:
        advice = rank_advice(stage, shape, critic, gpu_bytes)
        yield (
            f"    DOES NOT FIT: {_gib(memory.total)} of {_gib(limit)}, {USABLE:.0%} of a GPU: "
            f"{advice}"
        )
    settings = validator_settings(stage)
    rule = validator_bytes(shape, count_parameters(shape), settings)
    verdict = "fits" if rule <= validator_limit(gpu_bytes, settings) else "does not fit"
    yield f"    by Trinity-RFT's rule for the actor: {_gib(rule)}, {verdict}"


def _term_lines(terms: tuple[Term, ...]) -> Iterator[str]:
    for term in terms:
        yield f"    {term.name:18} {_gib(term.bytes):>10}  {term.formula}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"
