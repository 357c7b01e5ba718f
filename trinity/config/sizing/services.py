"""Host memory, processors and /dev/shm of each service, as sums of terms."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from trinity.config.plan.placement import EngineGroup, engine_groups_of, num_hosts
from trinity.config.plan.stage_plan import ExperimentPlan, StagePlan
from trinity.config.schema.explorer import EngineConfig
from trinity.config.sizing.memory import (
    BYTES,
    GIB,
    MemoryTerm,
    ResidentState,
    TrainingSettings,
)
from trinity.config.sizing.model_shape import (
    ModelShape,
    count_critic_parameters,
    count_parameters,
)
from trinity.config.sizing.stage_sizes import (
    RankMemory,
    local_shape,
    rank_memory,
    training_settings_of,
)
from trinity.config.sizing.volume import foreign_part, max_concurrent_runs
from trinity.errors import UserError

MIB = 2**20
MARGIN = 1.25
"""A quarter more, for the allocator, threads and files in memory."""
FLOAT32_BYTES = 4
_RANK_BYTES = {False: 512 * MIB, True: 4 * GIB}
"""A training process with its libraries, without a GPU and with one: CUDA's context, NCCL."""
_ENGINE_BYTES = {False: 512 * MIB, True: 4 * GIB}
"""The same of an engine's worker."""
_CPU_CACHE_BYTES = 1 * GIB
"""The most that an engine without a GPU takes for its cache."""
_USER_PROCESS_BYTES = 370 * MIB
_USER_PROCESSES = 8
"""Processes of users' code that there is room for; more are started where memory is free."""
_WRITE_BYTES = 2 * GIB
"""The most that a rank has of a checkpoint or version in the host's memory while it writes."""
_TRAIN_TOKEN_BYTES = 128
"""A token of a batch in the trainer: as received, and a dozen numbers."""
STORED_TOKEN_BYTES = 24
"""A token of a sample in the database: id, log-probability, mask, text."""
_FUNCTION_BYTES = 2 * GIB
"""The limit of the process that runs users' operators and advantages for the buffer."""
_RING_BYTES, _REPLY_BYTES = 160 * MIB, 240 * MIB
"""vLLM's queues in /dev/shm: to all workers of an engine, and of each one back."""
_NCCL_BYTES = GIB
_LEAST_SHM_BYTES = 64 * MIB
LARGEST_FILE_BYTES = 5 * 10**9
"""A file of a model on the hub, which a worker may read whole."""
INFERRING = ("reference weights", "teacher weights")
Shapes = Callable[[str], ModelShape | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSizes:
    """The part of its host that one process of a service takes, with its children.

    sizes = service_sizes(plan)["trainer"]
    sizes.memory_bytes, sizes.shm_bytes, sizes.cpus
    """

    memory: tuple[MemoryTerm, ...]
    """Held at all times."""
    loading: tuple[MemoryTerm, ...] = ()
    """Added while models are loaded."""
    working: tuple[MemoryTerm, ...] = ()
    """Added afterwards."""
    shm: tuple[MemoryTerm, ...] = ()
    cpus: int
    cpu_formula: str

    @property
    def memory_bytes(self) -> int:
        """Bytes to reserve, in whole GiB: files in /dev/shm count as memory of their container."""
        most = max(_total(self.loading), _total(self.working))
        taken = MARGIN * (_total(self.memory) + most)
        return -(-(int(taken) + self.shm_bytes) // GIB) * GIB

    @property
    def shm_bytes(self) -> int:
        """Size of /dev/shm."""
        return max(_total(self.shm), _LEAST_SHM_BYTES)


def _total(terms: Iterable[MemoryTerm]) -> int:
    return sum(term.bytes for term in terms)


def service_sizes(
    plan: ExperimentPlan, model_config: Path | None = None, *, own_functions: bool = False
) -> dict[str, ServiceSizes]:
    """Returns the sizes by service, of the stage that needs most; without those of services whose
    model has no `config.json` here.
    """
    stages = [stage_services(stage, model_config, own_functions) for stage in plan.stages]
    found: dict[str, ServiceSizes] = {}
    for name in dict.fromkeys(name for stage in stages for name in stage):
        sizes = [stage[name] for stage in stages if name in stage]
        known = [size for size in sizes if size is not None]
        if len(known) == len(sizes):
            found[name] = max(known, key=lambda size: (size.memory_bytes, size.cpus))
    return found


def stage_services(
    stage: StagePlan, model_config: Path | None = None, own_functions: bool = False
) -> dict[str, ServiceSizes | None]:
    """Returns the sizes of a stage's services; None where a model's shape is not known here."""
    shapes = partial(shape_in, stage, model_config)
    found: dict[str, ServiceSizes | None] = {
        "synchronizer": _synchronizer(),
        "buffer": _buffer(stage, own_functions),
    }
    if stage.needs_training:
        found["trainer"] = _trainer(stage, shapes)
    if stage.needs_rollout:
        found["explorer"] = _explorer(stage, shapes)
    return found


def shape_in(stage: StagePlan, model_config: Path | None, path: str) -> ModelShape | None:
    """Returns the shape of one of a stage's models; None where it is not here or not understood."""
    given = model_config if path == stage.model_path else None
    try:
        return local_shape(path, given)
    except UserError:
        if given is not None:
            raise
        return None


def _synchronizer() -> ServiceSizes:
    own = MemoryTerm("service", 256 * MIB, "it keeps nothing in memory")
    return ServiceSizes(memory=(own,), cpus=1, cpu_formula="1")


def _buffer(stage: StagePlan, own_functions: bool) -> ServiceSizes:
    tokens = stage.train_batch_size * stage.max_model_len
    memory = [
        MemoryTerm("service", 256 * MIB, "with its libraries"),
        MemoryTerm("results", 3 * 32 * MIB, "3 x 32 messages of 1 MiB, while they are stored"),
        MemoryTerm("large results", 256 * MIB, "while they arrive, of all tenants"),
        MemoryTerm("a batch", 3 * STORED_TOKEN_BYTES * tokens, f"3 x 24 bytes x {tokens:,} tokens"),
    ]
    if own_functions:
        memory.append(MemoryTerm("functions", _FUNCTION_BYTES, "limit of the users' functions"))
    return ServiceSizes(memory=tuple(memory), cpus=2, cpu_formula="1, and 1 for what it calls")


def _trainer(stage: StagePlan, shapes: Shapes) -> ServiceSizes | None:
    model = shapes(stage.model_path)
    critic = stage.critic_model_path if stage.needs_critic else None
    read = {path: shapes(path) for path in (critic, stage.teacher_model_path) if path is not None}
    if model is None or None in read.values():
        return None
    ranks = _HostRanks(
        stage=stage,
        model=model,
        critic=read.get(critic or ""),
        teacher=read.get(stage.teacher_model_path or ""),
    )
    on_gpu, num = ranks.on_gpu, ranks.num
    each, tokens = _RANK_BYTES[on_gpu], stage.train_batch_size * stage.max_model_len // ranks.hosts
    per_rank, formula = (4, "4 each") if on_gpu else (stage.num_threads or 1, "its threads each")
    return ServiceSizes(
        memory=(
            MemoryTerm("service", 128 * MIB, "without the ranks"),
            MemoryTerm("ranks", num * each, f"{num} x {each // MIB:,} MiB, with their libraries"),
            MemoryTerm("a batch", _TRAIN_TOKEN_BYTES * tokens, f"128 bytes x {tokens:,} tokens"),
        ),
        loading=tuple(ranks.loading()),
        working=(*ranks.state(), *ranks.writing()),
        shm=(MemoryTerm("NCCL", _NCCL_BYTES, "for the ranks of a machine"),) if on_gpu else (),
        cpus=1 + num * per_rank,
        cpu_formula=f"1, and for {num} ranks {formula}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostRanks:
    """The ranks of one machine, and what their models have in its memory."""

    stage: StagePlan
    model: ModelShape
    critic: ModelShape | None
    teacher: ModelShape | None

    @property
    def hosts(self) -> int:
        return num_hosts(self.stage.trainer_rank_num, self.stage.config.cluster.gpu_per_node)

    @property
    def num(self) -> int:
        return max(self.stage.trainer_rank_num // self.hosts, 1)

    @property
    def on_gpu(self) -> bool:
        return bool(self.stage.num_rank_gpus)

    @property
    def training(self) -> TrainingSettings:
        """The settings, in which FSDP2's own offloading is what it moves to the host.

        A micro-batch has no more tokens than a rank has of the batch.
        """
        stage, training = self.stage, training_settings_of(self.stage)
        rows = -(-stage.train_batch_size // stage.trainer_rank_num)
        of_rank = rows * stage.longest_unit * stage.sequence_parallel_size
        return replace(
            training,
            tokens=min(training.tokens, of_rank),
            policy=_moved(training.policy),
            critic=_moved(training.critic),
        )

    def state(self) -> Iterator[MemoryTerm]:
        """Yields what is in the host's memory: all without a GPU, else what is offloaded.

        Pinned memory comes in powers of two: a third more in the mean.
        """
        memory = rank_memory(self.stage, self.model, self.critic, self.training, self.teacher)
        if not self.on_gpu:
            yield MemoryTerm("training", self.num * memory.total, f"{self.num} x its memory above")
            return
        for role, term in self._of_host(memory):
            what = term.name if term.name.startswith(role) else f"{role} {term.name}"
            formula = f"{self.num} x {term.formula}, x 4/3 as it is pinned"
            yield MemoryTerm(what, self.num * term.bytes * 4 // 3, formula)

    def _of_host(self, memory: RankMemory) -> Iterator[tuple[str, MemoryTerm]]:
        """Yields the terms in the host's memory: verl keeps models that only infer there."""
        for role, terms in memory.terms:
            for term in terms:
                if term.is_offloaded or term.name in INFERRING:
                    yield role, term

    def loading(self) -> Iterator[MemoryTerm]:
        """Yields the memory in use when the largest model is read, whole, and then dealt out."""
        training, tied = self.training, self.model.is_tied
        readers = self.num if tied else -(-self.num // training.ranks)
        sizes = {"the model": FLOAT32_BYTES * count_parameters(self.model)}
        if self.stage.needs_critic:
            critic = self.critic or self.model
            sizes["the critic"] = FLOAT32_BYTES * count_critic_parameters(critic)
        if self.teacher is not None:
            sizes["the teacher"] = BYTES[training.dtype] * count_parameters(self.teacher)
        what, size = max(sizes.items(), key=lambda item: item[1])
        yield MemoryTerm(what, readers * size, f"{readers} of the ranks read it whole, in float32")
        if not self.on_gpu:
            yield MemoryTerm("its parts", self.num * size // training.ranks, "which the ranks take")
        yield from (term for term in self.state() if term.name in INFERRING)

    def writing(self) -> Iterator[MemoryTerm]:
        """Yields the memory in use while a checkpoint or a version is written."""
        training, whole = self.training, count_parameters(self.model)
        state = FLOAT32_BYTES * (1 + training.policy.moments) * whole // training.ranks
        written = self.num * min(_WRITE_BYTES, state)
        yield MemoryTerm("being written", written, f"{self.num} x a rank's part, 2 GiB at most")
        hashed = FLOAT32_BYTES * self.model.vocabulary * self.model.hidden
        yield MemoryTerm("being hashed", hashed, "4 V H, the largest tensor")
        if self.stage.transfers_weights_in_memory:
            size = BYTES[training.dtype]
            formula = f"2 x {size} P, the version on offer and the next one"
            yield MemoryTerm("weights to send", 2 * size * whole, formula)


def _moved(state: ResidentState) -> ResidentState:
    if not state.offloads_all:
        return state
    return ResidentState(moments=state.moments, offloads_parameters=True, offloads_optimizer=True)


def explorer_hosts(stage: StagePlan) -> int:
    """Returns the machines of one explorer: several if one engine alone is larger than one."""
    groups = engine_groups_of(stage) if stage.needs_rollout else ()
    largest = max((group.gpus_each for group in groups), default=0)
    return num_hosts(largest, stage.config.cluster.gpu_per_node)


def _explorer(stage: StagePlan, shapes: Shapes) -> ServiceSizes | None:
    models: list[tuple[EngineConfig, str]] = [
        (model.engine, model.model_path)
        for model in stage.auxiliary_models
        if model.external is None
    ]
    num_scorers = sum(
        engine.engine_num for engine, _ in models if engine.engine_type == "transformers"
    )
    if stage.external_model is None:
        models.append((stage.config.explorer.rollout_model, stage.model_path))
    read = [(engine, shapes(path)) for engine, path in models]
    engines = [(engine, shape) for engine, shape in read if shape is not None]
    if len(engines) < len(read):
        return None
    hosts, on_gpu = explorer_hosts(stage), stage.config.cluster.gpu_per_node > 0
    groups = [group for group in engine_groups_of(stage) if group.gpus_each]
    workers = sum(group.gpus for group in groups) // hosts
    memory = [MemoryTerm("service", 768 * MIB, "with graders, and results on their way")]
    for engine, shape in engines:
        memory += _of_engine(engine, shape, hosts, on_gpu)
    if part := foreign_part(stage):
        num = min(max_concurrent_runs(stage), _USER_PROCESSES)
        formula = f"{num} processes of 370 MiB, for {part}"
        memory.append(MemoryTerm("users' code", num * _USER_PROCESS_BYTES, formula))
    return ServiceSizes(
        memory=tuple(memory),
        loading=tuple(_while_loading(engines, hosts)),
        shm=(
            *(_queues(groups, hosts) if on_gpu else ()),
            *(_held_version(stage, engines[-1][1]) if hosts == 1 and engines else ()),
        ),
        cpus=2 + (2 if on_gpu else 1) * workers + num_scorers,
        cpu_formula=f"2, and {2 if on_gpu else 1} for each of {workers} workers"
        + (f", 1 for each of {num_scorers} that score" if num_scorers else ""),
    )


def _of_engine(
    engine: EngineConfig, shape: ModelShape, hosts: int, on_gpu: bool
) -> Iterator[MemoryTerm]:
    num, size = engine.engine_num, BYTES[engine.dtype]
    if engine.engine_type == "transformers":
        bytes_each = _ENGINE_BYTES[False] + size * count_parameters(shape)
        formula = f"{num} x (512 MiB + {size} P), in transformers on the processor"
        yield MemoryTerm("models that score", num * bytes_each, formula)
        return
    workers = engine.num_gpus // hosts
    each = _ENGINE_BYTES[on_gpu]
    formula = f"{workers} x {each // MIB:,} MiB, with their libraries"
    yield MemoryTerm("workers", workers * each, formula)
    if not on_gpu:
        weights = 2 * num * size * count_parameters(shape)
        yield MemoryTerm("weights", weights, f"{num} x 2 x {size} P, as read and packed")
        yield MemoryTerm("KV cache", num * _CPU_CACHE_BYTES, f"{num} x 1 GiB at most")
    offloaded = engine.extra_engine_args.get("cpu_offload_gb")
    if isinstance(offloaded, int | float) and offloaded:
        yield MemoryTerm("offloaded", int(workers * offloaded * GIB), "cpu_offload_gb a worker")


def _while_loading(
    engines: list[tuple[EngineConfig, ModelShape]], hosts: int
) -> Iterator[MemoryTerm]:
    for engine, shape in engines:
        whole = BYTES[engine.dtype] * count_parameters(shape)
        file, workers = min(whole, LARGEST_FILE_BYTES), engine.num_gpus // hosts
        yield MemoryTerm("loading", workers * file, f"{workers} x a file of weights, 5 GB at most")


def _held_version(stage: StagePlan, policy: ModelShape) -> Iterator[MemoryTerm]:
    size = BYTES[stage.config.trainer.dtype]
    if stage.mode in ("both", "serve") and stage.external_model is None and size == 2:
        formula = "2 P, to which differences are applied"
        yield MemoryTerm("newest version", size * count_parameters(policy), formula)


def _queues(groups: list[EngineGroup], hosts: int) -> Iterator[MemoryTerm]:
    for group in groups:
        here = group.gpus // hosts
        if group.gpus_each > 1:
            size = group.num * _RING_BYTES + here * _REPLY_BYTES
            yield MemoryTerm("vLLM's queues", size, "160 MiB an engine, 240 MiB a worker")
            yield MemoryTerm("NCCL", _NCCL_BYTES, "for workers of a machine")
