"""Disk of a run: its directory, its part of the database, and the cache of the hub's models."""

from collections.abc import Iterator
from pathlib import Path

from trinity.config.plan.model import hub_references
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan, keeps_best
from trinity.config.sizing.memory import BYTES, MemoryTerm
from trinity.config.sizing.model_shape import ModelShape, count_adapter, count_parameters
from trinity.config.sizing.services import FLOAT32_BYTES, STORED_TOKEN_BYTES, shape_in
from trinity.config.sizing.stage_sizes import MOMENTS
from trinity.config.sizing.volume import run_volume

KEPT_VERSIONS = 3
"""Versions of the weights at a time: the two newest and the one being written."""
LINEAGE_BYTES = 2800
"""A sample's rows in the database that stay, with indexes."""


def disk_sizes(
    plan: ExperimentPlan, model_config: Path | None = None, rows: int | None = None
) -> dict[str, tuple[MemoryTerm, ...]]:
    """Returns what the run's directory, the database and the hub's cache take, as far as known."""
    run: list[MemoryTerm] = []
    database: list[MemoryTerm] = []
    for stage in plan.stages:
        shape = shape_in(stage, model_config, stage.model_path)
        if stage.needs_training and shape is not None:
            run += _of_run(stage, shape, rows)
        database += _of_database(stage, rows)
    return {
        "run": tuple(run),
        "database": tuple(database),
        "cache": tuple(_of_cache(plan, model_config)),
    }


def _of_run(stage: StagePlan, shape: ModelShape, rows: int | None) -> Iterator[MemoryTerm]:
    trainer, whole = stage.config.trainer, count_parameters(shape)
    size, name = BYTES[trainer.dtype], f"{stage.name}: " if stage.name else ""
    num = KEPT_VERSIONS + (trainer.keep_best if keeps_best(stage) else 0)
    yield MemoryTerm(f"{name}versions", num * size * whole, f"{num} x {size} P")
    learnt, part = (whole, "P") if stage.lora is None else (count_adapter(shape, stage.lora), "A")
    saved = FLOAT32_BYTES
    if "optimizer" in trainer.save_contents:
        saved *= 1 + MOMENTS[stage.config.algorithm.optimizer.optimizer_type]
    each = saved * learnt + (size * whole if "hf_model" in trainer.save_contents else 0)
    if stage.needs_critic:
        each += 3 * FLOAT32_BYTES * whole
    steps, interval = stage.num_train_steps(rows or 0), trainer.save_interval
    all_of_them = 1 + (steps // interval if interval else 0)
    kept = min(trainer.max_checkpoints_to_keep or all_of_them, all_of_them) + 1
    formula = f"{kept} x {each // max(learnt, 1)} {part}, one of them being written"
    yield MemoryTerm(f"{name}checkpoints", kept * each, formula)


def _of_database(stage: StagePlan, rows: int | None) -> Iterator[MemoryTerm]:
    volume = None if stage.mode == "serve" else run_volume(stage, rows)
    if volume is None:
        return
    samples, tokens = volume.experiences, volume.rollout_tokens
    kept = stage.config.buffer.keep_steps
    if kept is not None:
        recent = (kept + max(stage.config.trainer.save_interval, 1)) * stage.train_batch_size
        tokens = min(tokens, recent * stage.max_model_len)
    size = LINEAGE_BYTES * samples + STORED_TOKEN_BYTES * tokens
    formula = f"2.8 kB x {samples:,} samples + 24 bytes x {tokens:,} tokens"
    yield MemoryTerm(f"{stage.name}: samples" if stage.name else "samples", size, formula)


def _of_cache(plan: ExperimentPlan, model_config: Path | None) -> Iterator[MemoryTerm]:
    for model in hub_references(plan):
        shape = shape_in(plan.stages[0], model_config, model.name)
        if model.kind == "model" and shape is not None:
            size = shape.stored_bytes * count_parameters(shape)
            yield MemoryTerm(model.name, size, f"{shape.stored_bytes} P")
