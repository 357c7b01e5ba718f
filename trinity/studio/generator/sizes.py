"""The plan of a form in pictures: which process has which GPU, and how full each one gets."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from trinity.config.plan.placement import assign_gpus, cluster_gpus_of, gpu_demand_of
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.sizing.memory import GIB, MemoryTerm
from trinity.config.sizing.model_shape import ModelShape
from trinity.config.sizing.stage_sizes import (
    USABLE,
    EngineMemory,
    engine_advice,
    engine_memory,
    local_shape,
    rank_advice,
    rank_memory,
)
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject, JsonValue

MAX_NODES = 8
"""Most machines in the picture of GPUs."""
BAR_HEIGHT = 34
AXIS_HEIGHT = 90
"""In pixels: the axis, its title, and the legend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuGrid:
    """The process of each GPU, a row a machine."""

    rows: tuple[tuple[str, ...], ...]
    num_nodes: int
    """Machines in all; the rows are those of the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBar:
    """The estimated memory of one GPU of a role."""

    role: str
    terms: tuple[MemoryTerm, ...]
    used: int
    """Bytes at the peak; terms that never meet are counted once."""
    limit: int
    """Bytes that the role may use."""
    remedy: str = ""
    """One sentence for a role that does not fit; empty if it fits."""

    @property
    def verdict(self) -> str:
        """The result in words."""
        sizes = f"{self.used / GIB:.1f} of {self.limit / GIB:.1f} GiB"
        return f"{sizes}: does not fit: {self.remedy}" if self.remedy else f"{sizes}: fits"


def gpu_grid(stage: StagePlan) -> GpuGrid | None:
    """Returns the process of each GPU; None for a stage without GPUs, or one that has no room."""
    cluster = cluster_gpus_of(stage)
    if not cluster.total:
        return None
    try:
        seats = assign_gpus(cluster, gpu_demand_of(stage))
    except UserError:
        return None  # the check says so at its field
    names: dict[str, list[str]] = {}
    for seat in seats:
        for gpu in seat.gpus:
            names.setdefault(gpu, []).append(seat.name)
    rows = tuple(
        tuple(
            ", ".join(names.get(f"{node}:{gpu}", ["free"])) for gpu in range(cluster.gpus_per_node)
        )
        for node in range(min(cluster.nodes, MAX_NODES))
    )
    return GpuGrid(rows=rows, num_nodes=cluster.nodes)


def memory_bars(stage: StagePlan, gpu_bytes: int) -> tuple[MemoryBar, ...]:
    """Returns the bars of engines and ranks whose model's `config.json` is on this machine."""
    return tuple(_bars(stage, gpu_bytes)) if cluster_gpus_of(stage).total else ()


def unknown_models(stage: StagePlan) -> tuple[str, ...]:
    """Returns the models of a stage without a `config.json` on this machine."""
    paths = [] if stage.external_model is not None else [stage.model_path]
    paths += [m.model_path for m in stage.auxiliary_models if m.external is None]
    return tuple(path for path in dict.fromkeys(paths) if local_shape(path) is None)


def _bars(stage: StagePlan, gpu_bytes: int) -> Iterator[MemoryBar]:
    shape = None if stage.external_model is not None else local_shape(stage.model_path)
    if shape is not None and stage.needs_rollout:
        yield _engine_bar(stage, shape, gpu_bytes)
    for model in stage.auxiliary_models if stage.needs_rollout else ():
        own = local_shape(model.model_path) if model.has_gpus else None
        if own is not None:
            memory = engine_memory(model.engine, own, gpu_bytes)
            share = model.engine.gpu_memory_utilization
            remedy = (
                "raise the `gpu_memory_utilization` or `tensor_parallel_size` of this model under "
                "`explorer.auxiliary_models`, or shorten its `max_model_len`"
            )
            fits = memory.cached_tokens >= model.max_model_len
            yield _cached_bar(model.name, memory, int(share * gpu_bytes), "" if fits else remedy)
    if shape is not None and "trainer" in stage.roles and stage.num_rank_gpus:
        yield _rank_bar(stage, shape, gpu_bytes)


def _engine_bar(stage: StagePlan, shape: ModelShape, gpu_bytes: int) -> MemoryBar:
    engine = stage.config.explorer.rollout_model
    memory, share = engine_memory(engine, shape, gpu_bytes), engine.gpu_memory_utilization
    fits = memory.cached_tokens >= stage.max_model_len
    wanted = (
        memory.room * stage.max_model_len // memory.cached_tokens if memory.cached_tokens else GIB
    )
    remedy = "" if fits else engine_advice(stage, shape, gpu_bytes, wanted)
    return _cached_bar("rollout engine", memory, int(share * gpu_bytes), remedy)


def _cached_bar(role: str, memory: EngineMemory, limit: int, remedy: str) -> MemoryBar:
    terms = tuple(term for term in memory.terms if term.bytes > 0)
    used = sum(term.bytes for term in terms)
    return MemoryBar(role=role, terms=terms, used=used, limit=limit, remedy=remedy)


def _rank_bar(stage: StagePlan, shape: ModelShape, gpu_bytes: int) -> MemoryBar:
    critic = None if stage.critic_model_path is None else local_shape(stage.critic_model_path)
    teacher = None if stage.teacher_model_path is None else local_shape(stage.teacher_model_path)
    memory = rank_memory(stage, shape, critic, teacher=teacher)
    limit = int(USABLE * gpu_bytes)
    fits = memory.total <= limit
    return MemoryBar(
        role="trainer",
        terms=tuple(_named_terms(memory.terms)),
        used=memory.total,
        limit=limit,
        remedy="" if fits else rank_advice(stage, shape, critic, gpu_bytes, teacher),
    )


def _named_terms(roles: Iterable[tuple[str, tuple[MemoryTerm, ...]]]) -> Iterator[MemoryTerm]:
    """Yields the terms of all models of a rank; those of others than the actor with their name."""
    for role, terms in roles:
        for term in terms:
            is_named = role == "actor" or term.name.startswith(role)
            name = term.name if is_named else f"{role} {term.name}"
            yield MemoryTerm(name, term.bytes, term.formula, term.is_offloaded)


def memory_chart(bars: Sequence[MemoryBar], gpu_bytes: int) -> JsonObject:
    """Returns a chart with a bar a role and a line at the end of the GPU."""
    roles: list[JsonValue] = [f"{bar.role}: {bar.used / GIB:.0f} GiB" for bar in bars]
    values: list[JsonValue] = [
        {"role": role, "part": term.name, "gib": term.bytes / GIB, "formula": term.formula}
        for role, bar in zip(roles, bars, strict=True)
        for term in bar.terms
    ]
    axis: JsonObject = {"field": "gib", "type": "quantitative", "title": "GiB of one GPU"}
    return {
        "data": {"values": values},
        "height": BAR_HEIGHT * len(bars),
        "layer": [
            {
                "mark": {"type": "bar", "stroke": "#14171C", "strokeWidth": 0.5},
                "encoding": {
                    "x": {**axis, "stack": "zero"},
                    "y": {"field": "role", "type": "nominal", "title": None, "sort": roles},
                    "color": {
                        "field": "part",
                        "type": "nominal",
                        "title": None,
                        "legend": {"orient": "bottom", "columns": 3},
                    },
                    "tooltip": [
                        {"field": "part", "title": "part"},
                        {"field": "gib", "type": "quantitative", "title": "GiB", "format": ".2f"},
                        {"field": "formula", "title": "from"},
                    ],
                },
            },
            {
                "data": {"values": [{"gib": gpu_bytes / GIB}]},
                "mark": {"type": "rule", "strokeDash": [4, 3], "strokeWidth": 2},
                "encoding": {"x": {"field": "gib", "type": "quantitative"}},
            },
        ],
    }
