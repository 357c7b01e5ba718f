"""Report lines on the memory of a planned stage."""

from collections.abc import Iterator
from pathlib import Path

from trinity.cli.counting import counted
from trinity.config.plan.model import local_model_directory
from trinity.config.plan.parts import AuxiliaryModel
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError
from trinity.sizing.adapter import count_adapter
from trinity.sizing.advice import USABLE, engine_advice, rank_advice
from trinity.sizing.demand import machines_of
from trinity.sizing.memory import GIB, Term
from trinity.sizing.model_shape import ModelShape, read_shape
from trinity.sizing.parameters import count_parameters
from trinity.sizing.runs import runs_at_a_time
from trinity.sizing.stage_sizes import (
    auxiliary_memory,
    engine_memory,
    rank_memory,
    validator_settings,
)
from trinity.sizing.validator import validator_bytes, validator_limit


def memory_lines(
    stage: StagePlan, model_config: Path | None, gpu_bytes: int | None
) -> Iterator[str]:
    """Yields the terms of each role and, with the size of a GPU, a verdict on whether they fit."""
    yield "memory of a GPU, an estimate until measured"
    yield "  P parameters, L layers, H their width, V vocabulary, T tokens of a micro-batch"
    if stage.external_model is not None:
        yield f"  rollout model: none, `{stage.external_model.model_name}` is served elsewhere"
        yield from _beside_lines(stage, gpu_bytes)
        return
    shape = _shape(stage.model_path, model_config)
    if shape is None:
        yield f"  there is no config.json of {stage.model_path} here: give --model-config FILE"
        yield from _beside_lines(stage, gpu_bytes)
        return
    about = "" if shape.is_known else f", counted as a llama: `{shape.family}` is not known exactly"
    yield f"  model            {count_parameters(shape):,} parameters{about}"
    if stage.lora is not None:
        yield f"  adapter          A = {count_adapter(shape, stage.lora):,} parameters, which learn"
    critic = None if stage.critic_model_path is None else _shape(stage.critic_model_path, None)
    if stage.needs_rollout:
        yield from _engine_lines(stage, shape, gpu_bytes)
        yield from _beside_lines(stage, gpu_bytes)
    if "trainer" in stage.roles:
        yield from _rank_lines(stage, shape, critic, gpu_bytes)
    if gpu_bytes is None and machines_of(stage).total:
        yield "  --gpu-memory GIB shows whether it fits"


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
    sequences = engine.cached_tokens // stage.max_model_len
    wanted = _wanted_cache(stage, engine.room, engine.cached_tokens)
    if sequences < 1:
        advice = engine_advice(stage, shape, gpu_bytes, wanted)
        yield f"    DOES NOT FIT: no sequence of {stage.max_model_len} tokens: {advice}"
        return
    yield (
        f"    FITS: the cache holds {engine.cached_tokens:,} tokens, {sequences:,} of the longest "
        f"sequences; up to {runs_at_a_time(stage):,} run at a time"
    )


def _beside_lines(stage: StagePlan, gpu_bytes: int | None) -> Iterator[str]:
    for model in stage.auxiliary_models:
        yield from _auxiliary_lines(stage, model, gpu_bytes)


def _auxiliary_lines(
    stage: StagePlan, model: AuxiliaryModel, gpu_bytes: int | None
) -> Iterator[str]:
    yield f"  auxiliary model {model.name}, on each GPU of its engines"
    if model.external is not None:
        yield "    none: it is served elsewhere"
        return
    shape = _shape(model.model_path, None)
    if shape is None:
        yield f"    there is no config.json of {model.model_path} here"
        return
    engine = auxiliary_memory(model, shape, gpu_bytes or 0)
    yield from _term_lines(engine.terms if gpu_bytes else engine.terms[:-1])
    if gpu_bytes is None or not machines_of(stage).total:
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
    memory = rank_memory(stage, shape, critic)
    for role, terms in memory.terms:
        yield f"  {role:16} on each of {counted(stage.trainer_rank_num, 'GPU')}"
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
