"""`trinity config plan`: where each stage would run, its volume, and its memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from trinity.cli.overrides import FileOption, WordsArgument, parse_overrides, split_words
from trinity.cli.run import AdoptedOption, PluginDirOption, use_plugins
from trinity.config.check import check_file
from trinity.config.data_files import find_data_files
from trinity.config.data_rows import count_rows
from trinity.config.plan.parts import AuxiliaryModel
from trinity.config.plan.placement import GpuAssignment, assign_gpus, cluster_gpus_of, gpu_demand_of
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.base import KeyStatus
from trinity.config.schema.choices import BY_TURNS
from trinity.config.sizing.disk import disk_sizes
from trinity.config.sizing.memory import GIB, MemoryTerm
from trinity.config.sizing.model_shape import ModelShape, count_adapter, count_parameters
from trinity.config.sizing.services import stage_services
from trinity.config.sizing.stage_sizes import (
    USABLE,
    engine_advice,
    engine_memory,
    local_shape,
    rank_advice,
    rank_memory,
    turn_memory,
    validator_bytes,
)
from trinity.config.sizing.volume import (
    RunVolume,
    foreign_part,
    max_concurrent_runs,
    run_volume,
    runs_per_runner,
)
from trinity.errors import UserError
from trinity.run.output import pluralize
from trinity.runtime.host_port import join_address

MAX_LISTED_SEATS = 8
DISKS = {"run": "run's directory", "database": "database", "cache": "models of the hub"}
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


def memory_lines(
    stage: StagePlan, model_config: Path | None, gpu_bytes: int | None
) -> Iterator[str]:
    """Yields the terms of each role and, with the size of a GPU, a verdict on whether they fit."""
    yield "memory of a GPU, an estimate until measured"
    yield "  P parameters, L layers, H their width, V vocabulary, T tokens of a micro-batch"
    if stage.external_model is not None:
        yield f"  rollout model: none, `{stage.external_model.model_name}` is served elsewhere"
        yield from _all_auxiliary_lines(stage, gpu_bytes)
        return
    shape = local_shape(stage.model_path, model_config)
    if shape is None:
        yield f"  there is no config.json of {stage.model_path} here: give --model-config FILE"
        yield from _all_auxiliary_lines(stage, gpu_bytes)
        return
    about = "" if shape.is_known else f", counted as a llama: `{shape.family}` is not known exactly"
    yield f"  model            {count_parameters(shape):,} parameters{about}"
    if stage.lora is not None:
        yield f"  adapter          A = {count_adapter(shape, stage.lora):,} parameters, which learn"
    critic = None if stage.critic_model_path is None else local_shape(stage.critic_model_path)
    if stage.needs_rollout:
        yield from _engine_lines(stage, shape, gpu_bytes)
        yield from _all_auxiliary_lines(stage, gpu_bytes)
    if "trainer" in stage.roles:
        yield from _rank_lines(stage, shape, critic, gpu_bytes)
    if stage.takes_turns:
        yield from _turn_lines(stage, shape, critic)
    if gpu_bytes is None and cluster_gpus_of(stage).total:
        yield "  --gpu-memory GIB shows whether it fits"


def _engine_lines(stage: StagePlan, shape: ModelShape, gpu_bytes: int | None) -> Iterator[str]:
    engine = engine_memory(stage.config.explorer.rollout_model, shape, gpu_bytes or 0)
    yield "  rollout engine   on each of its GPUs"
    shown = engine.terms if gpu_bytes else engine.terms[:-1]
    yield from _term_lines(shown)
    if gpu_bytes is None or not cluster_gpus_of(stage).total:
        return
    sequences = engine.cached_tokens // stage.max_model_len
    wanted = _wanted_cache(stage, engine.room, engine.cached_tokens)
    if sequences < 1:
        advice = engine_advice(stage, shape, gpu_bytes, wanted)
        yield f"    DOES NOT FIT: no sequence of {stage.max_model_len} tokens: {advice}"
        return
    yield (
        f"    FITS: the cache holds {engine.cached_tokens:,} tokens, {sequences:,} of the longest "
        f"sequences; up to {max_concurrent_runs(stage):,} run at a time"
    )


def _all_auxiliary_lines(stage: StagePlan, gpu_bytes: int | None) -> Iterator[str]:
    for model in stage.auxiliary_models:
        yield from _auxiliary_lines(stage, model, gpu_bytes)


def _auxiliary_lines(
    stage: StagePlan, model: AuxiliaryModel, gpu_bytes: int | None
) -> Iterator[str]:
    asked = " for scores" if model.role == "score" else ""
    yield f"  auxiliary model {model.name}{asked}, on each GPU of its engines"
    if not model.has_gpus:
        elsewhere = "it is served elsewhere" if model.external else "it runs on the processor"
        yield f"    none: {elsewhere}"
        return
    shape = local_shape(model.model_path)
    if shape is None:
        yield f"    there is no config.json of {model.model_path} here"
        return
    engine = engine_memory(model.engine, shape, gpu_bytes or 0)
    yield from _term_lines(engine.terms if gpu_bytes else engine.terms[:-1])
    if gpu_bytes is None or not cluster_gpus_of(stage).total:
        return
    sequences = engine.cached_tokens // model.max_model_len
    if sequences < 1:
        yield (
            f"    DOES NOT FIT: no sequence of {model.max_model_len} tokens: raise its "
            "`gpu_memory_utilization` or `tensor_parallel_size`, or shorten its `max_model_len`"
        )
        return
    yield (
        f"    FITS: the cache holds {engine.cached_tokens:,} tokens, {sequences:,} of the longest "
        "sequences"
    )


def _wanted_cache(stage: StagePlan, room: int, cached_tokens: int) -> int:
    """Bytes of one longest sequence; from the engine's own numbers if it has any."""
    if cached_tokens:
        return room * stage.max_model_len // cached_tokens
    return GIB


def _rank_lines(
    stage: StagePlan, shape: ModelShape, critic: ModelShape | None, gpu_bytes: int | None
) -> Iterator[str]:
    path = stage.teacher_model_path
    teacher = None if path is None else local_shape(path)
    memory = rank_memory(stage, shape, critic, teacher=teacher)
    for role, terms in memory.terms:
        yield f"  {role:16} on each of {pluralize(stage.trainer_rank_num, 'GPU')}"
        yield from _term_lines(terms)
    yield f"  {'together':18}   {_gib(memory.total):>10}  a pass and an optimizer step never meet"
    if gpu_bytes is None or not cluster_gpus_of(stage).total:
        return
    limit = int(USABLE * gpu_bytes)
    if memory.total <= limit:
        yield f"    FITS: {_gib(memory.total)} of {_gib(limit)}, {USABLE:.0%} of a GPU"
    else:
        advice = rank_advice(stage, shape, critic, gpu_bytes, teacher)
        yield (
            f"    DOES NOT FIT: {_gib(memory.total)} of {_gib(limit)}, {USABLE:.0%} of a GPU: "
            f"{advice}"
        )
    rule = validator_bytes(stage, shape, count_parameters(shape))
    verdict = "fits" if rule <= limit else "does not fit"
    yield f"    by Trinity-RFT's rule for the actor: {_gib(rule)}, {verdict}"


def _turn_lines(stage: StagePlan, shape: ModelShape, critic: ModelShape | None) -> Iterator[str]:
    """Yields the host memory for trainer and engine while the other one has the GPU."""
    waits = turn_memory(stage, shape, critic)
    yield "  by turns         the host's memory, for what is not on the GPU"
    kept = "weights, while the trainer works" if waits.engine else "none: loaded at each turn"
    for name, size, what in (
        ("trainer", waits.trainer, "weights and optimizer, while the engine works"),
        ("engine", waits.engine, kept),
    ):
        yield f"    {name:18} {_gib(size):>10}  {what}"


def service_lines(
    stage: StagePlan, model_config: Path | None, *, own_functions: bool
) -> Iterator[str]:
    """Yields what a process of each service takes of its host, with the terms of its memory."""
    yield "host of each process of a service, an estimate"
    for name, sizes in stage_services(stage, model_config, own_functions).items():
        if sizes is None:
            yield f"  {name:16} not known without the config.json of its model"
            continue
        yield (
            f"  {name:16} {_gib(sizes.memory_bytes)} memory, {pluralize(sizes.cpus, 'CPU')} "
            f"({sizes.cpu_formula}), {_gib(sizes.shm_bytes)} /dev/shm"
        )
        for title, terms in (
            ("", sizes.memory),
            ("and while models are loaded", sizes.loading),
            ("or afterwards", sizes.working),
            ("of it in /dev/shm", sizes.shm),
        ):
            yield from [f"    {title}:"] if title and terms else []
            yield from _term_lines(terms)
    yield "  memory is a quarter more than its terms, and /dev/shm, in whole GiB"


def _term_lines(terms: tuple[MemoryTerm, ...]) -> Iterator[str]:
    for term in terms:
        yield f"    {term.name:18} {_gib(term.bytes):>10}  {term.formula}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB"


def plan(
    words: WordsArgument = None,
    config: FileOption = None,
    gpu_memory: GpuMemoryOption = None,
    model_config: ModelConfigOption = None,
    rows: RowsOption = None,
    plugin_dir: PluginDirOption = None,
    adopted: AdoptedOption = None,
) -> None:
    """Show what would run where; starts nothing, and reads only the config.json of the model.

    Memory is an estimate, not a measurement.
    """
    use_plugins(plugin_dir, adopted, runs=False)
    file, overrides = split_words(words, config, "trinity config plan")
    experiment = _planned(file, parse_overrides(overrides))
    print(f"{experiment.label} in {experiment.job_dir}")
    gpu_bytes = None if gpu_memory is None else int(gpu_memory * GIB)
    for stage in experiment.stages:
        what = "" if stage.mode == "serve" else f", {stage.algorithm_type}"
        mode = BY_TURNS if stage.takes_turns else stage.mode
        print(f"\nstage {stage.index + 1}: {stage.name} (mode {mode}{what})")
        for line in _placement_lines(stage):
            print(f"  {line}")
        for line in _volume_lines(stage, rows):
            print(f"  {line}")
        for line in memory_lines(stage, model_config, gpu_bytes):
            print(f"  {line}")
        for line in service_lines(stage, model_config, own_functions=bool(plugin_dir or adopted)):
            print(f"  {line}")
    print("\ndisk, an estimate")
    for place, terms in disk_sizes(experiment, model_config, rows).items():
        print(f"  {DISKS[place]:18}   {_gib(sum(term.bytes for term in terms)):>10}")
        for line in _term_lines(terms):
            print(f"  {line}")


def _planned(file: Path, overrides: Mapping[str, JsonValue]) -> ExperimentPlan:
    """Plans a file without its planned keys, which are printed."""
    report = check_file(file, overrides)
    if report.plan is None:
        reason = f"{file} cannot be planned yet: see `trinity config check {file}`"
        raise UserError("\n".join(report.errors) or reason)
    for notice in report.notices:
        if notice.status is KeyStatus.PLANNED:
            print(f"without what is planned: {notice} {notice.place}")
    for text in report.advice:
        print(f"advice: {text}")
    return report.plan


def _placement_lines(stage: StagePlan) -> Iterator[str]:
    seats = assign_gpus(cluster_gpus_of(stage), gpu_demand_of(stage))
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
        yield f"    {_runs_line(stage)}"
        yield from _seat_lines([seat for seat in seats if not seat.name.startswith("rank")])
    if stage.mode == "serve":
        explorer = stage.config.explorer
        yield f"  listens on       {join_address(explorer.listen_address, explorer.proxy_port)}"


def _runs_line(stage: StagePlan) -> str:
    runners, each = stage.config.explorer.runner_per_model, runs_per_runner(stage)
    line = (
        f"runs at a time     {runners * each} on each engine: `runner_per_model: {runners}`, "
        f"{pluralize(each, 'run')} a runner"
    )
    if stage.config.explorer.runs_per_runner is None and (part := foreign_part(stage)):
        return f"{line} because of {part}; `explorer.runs_per_runner` allows more"
    return line


def _seat_lines(seats: list[GpuAssignment]) -> Iterator[str]:
    """Yields a line per seat; of many, only the first and the last."""
    shown = seats if len(seats) <= MAX_LISTED_SEATS else [seats[0], seats[-1]]
    for position, seat in enumerate(shown):
        where = ", ".join(f"GPU {gpu}" for gpu in seat.gpus) or "the processor"
        yield f"    {seat.name:18} {where}"
        if position == 0 and len(shown) < len(seats):
            yield f"    ... {len(seats) - 2} more"


def _volume_lines(stage: StagePlan, rows: int | None) -> Iterator[str]:
    if stage.mode == "serve":
        yield "volume             all requests that arrive"
        return
    volume = run_volume(stage, rows or _rows(stage))
    yield "volume"
    if volume is None:
        yield "  depends on the data, which is not on this machine: give its size with --rows"
        return
    if stage.needs_rollout:
        yield from _rollout_lines(stage, volume)
    if volume.train_steps:
        yield (
            f"  {volume.train_steps:,} train steps of {_rows_of_a_step(stage)}: "
            f"{volume.trained_rows:,} rows, at most {volume.trained_tokens:,} tokens"
        )
    if volume.evaluations:
        what = pluralize(len(stage.eval_tasksets), "taskset")
        yield f"  {pluralize(volume.evaluations, 'evaluation')} of {what}"


def _rows_of_a_step(stage: StagePlan) -> str:
    if stage.trains_explore_steps:
        return f"an explore step, of {stage.num_fresh_rows:,} rows if each run gives one"
    return f"{stage.train_batch_size:,} rows"


def _rollout_lines(stage: StagePlan, volume: RunVolume) -> Iterator[str]:
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
