"""Assigns GPUs to engines and training ranks, or explains why that is impossible."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.choices import BY_TURNS
from trinity.config.schema.explorer import EngineConfig
from trinity.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterGpus:
    """The available machines."""

    nodes: int
    gpus_per_node: int

    @property
    def total(self) -> int:
        """Number of GPUs in all."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGroup:
    """Engines of one model."""

    name: str
    num: int
    tensor_parallel: int = 1
    data_parallel: int = 1
    pipeline_parallel: int = 1
    kind: str = "vllm"

    @property
    def gpus_each(self) -> int:
        """GPUs of one engine; 0 for an external model."""
        if self.kind in ("external", "tinker"):
            return 0
        return self.tensor_parallel * self.data_parallel * self.pipeline_parallel

    @property
    def gpus(self) -> int:
        """GPUs of all these engines."""
        return self.num * self.gpus_each


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    """A process, and its GPUs as `node:gpu`."""

    name: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDemand:
    """The resources that a stage needs."""

    mode: str
    engines: tuple[EngineGroup, ...]
    ranks: int
    """Training processes, one GPU each."""
    ranks_on_processor: bool = False
    """True where they have none: a bench only reads checkpoints with them."""
    sequence_parallel: int = 1


def assign_gpus(cluster: ClusterGpus, demand: GpuDemand) -> list[GpuAssignment]:
    """Assigns GPUs to engines in their order, then to ranks.

    Without GPUs every process is on the CPU. Raises: UserError naming the setting.
    """
    if cluster.total == 0:
        return [*_without_gpus(demand)]
    check_demand(cluster, demand)
    free: Iterator[str] = iter(
        f"{node}:{gpu}" for node in range(cluster.nodes) for gpu in range(cluster.gpus_per_node)
    )
    if demand.mode == BY_TURNS:
        gpu = next(free)
        return [GpuAssignment(assignment.name, (gpu,)) for assignment in _without_gpus(demand)]
    assignments = [
        GpuAssignment(name, tuple(islice(free, engines.gpus_each)))
        for engines in demand.engines
        for name in _engine_names(engines)
    ]
    each = 0 if demand.ranks_on_processor else 1
    if each and demand.ranks > cluster.gpus_per_node:  # whole machines
        taken = sum(len(assignment.gpus) for assignment in assignments)
        free = islice(free, -taken % cluster.gpus_per_node, None)
    return assignments + [
        GpuAssignment(f"rank {i}", tuple(islice(free, each))) for i in range(demand.ranks)
    ]


def check_demand(cluster: ClusterGpus, demand: GpuDemand) -> None:
    """Raises: UserError if the demand cannot be met."""
    for engines in demand.engines:
        _check_engine(cluster, engines)
    _check_alone(cluster, demand.engines)
    if demand.mode == BY_TURNS:
        _check_colocated(cluster, demand)
        return
    _check_separate_gpus(cluster, demand)


def _check_separate_gpus(cluster: ClusterGpus, demand: GpuDemand) -> None:
    """Checks that the GPUs suffice for separate engines and ranks.

    Ranks must be on one machine, or fill whole machines.
    """
    taken, total = sum(engines.gpus for engines in demand.engines), cluster.total
    shown = " + ".join(
        f"{engines.num} x {engines.gpus_each} ({engines.name})" for engines in demand.engines
    )
    if demand.mode in ("explore", "bench", "serve"):
        if taken > total:
            raise UserError(
                f"engines want {taken} GPUs ({shown}), there are {total}: lower `engine_num` or "
                "`tensor_parallel_size`, or raise `cluster.gpu_per_node`"
            )
        _check_ranks(cluster, 0 if demand.ranks_on_processor else demand.ranks, taken)
        return
    left = total - taken
    if left < 1:
        raise UserError(
            f"engines want {taken} of {total} GPUs ({shown}), which leaves none to train on: "
            "lower `explorer.rollout_model.engine_num` or raise `cluster.gpu_per_node`"
        )
    _check_ranks(cluster, demand.ranks or left, taken)


def num_hosts(ranks: int, gpus_per_node: int) -> int:
    """Returns the machines of a gang: one, or as many whole ones as its ranks fill."""
    return -(-ranks // gpus_per_node) if gpus_per_node and ranks else 1


def _check_ranks(cluster: ClusterGpus, ranks: int, taken: int) -> None:
    """Checks that ranks are on one machine, or have whole machines without an engine."""
    node = cluster.gpus_per_node
    if ranks <= node:
        return
    free = cluster.nodes - -(-taken // node)
    if ranks % node or ranks // node > free:
        advice = f"`trainer.rank_num: {max(free, 1) * node}`"
        raise UserError(
            f"{ranks} ranks are more than one machine has GPUs (`cluster.gpu_per_node: {node}`), "
            f"and a gang of several has whole ones, of which engines leave {max(free, 0)}: give "
            f"{advice} or less by whole machines, or let engines take the other machines "
            "(`explorer.rollout_model.engine_num` x `tensor_parallel_size`)"
        )


def _check_engine(cluster: ClusterGpus, engines: EngineGroup) -> None:
    each, node = engines.gpus_each, cluster.gpus_per_node
    if each <= node:
        return
    if each % node:
        raise UserError(
            f"one engine of {engines.name} wants {each} GPUs, no multiple of a node's {node}: "
            "change `explorer.rollout_model.tensor_parallel_size`, or `data_parallel_size` or "
            "`pipeline_parallel_size` beside it"
        )
    if engines.kind.startswith("vllm") and engines.data_parallel > 1:
        raise UserError(
            f"one engine of {engines.name} spans {each // node} nodes, where vLLM takes no "
            "`data_parallel_size`: set it to 1 and raise `engine_num`"
        )


def _check_alone(cluster: ClusterGpus, groups: tuple[EngineGroup, ...]) -> None:
    """Checks that an engine that spans machines is the explorer's only engine."""
    spanning = [engines for engines in groups if engines.gpus_each > cluster.gpus_per_node]
    if spanning and sum(engines.num for engines in groups if engines.gpus_each) > 1:
        first = spanning[0]
        raise UserError(
            f"one engine of {first.name} spans {first.gpus_each // cluster.gpus_per_node} nodes, "
            "and an explorer on several has one: set `engine_num` to 1, and let a server elsewhere "
            "answer for auxiliary models (`external_model_config`), or leave them out"
        )


def _check_colocated(cluster: ClusterGpus, demand: GpuDemand) -> None:
    fits = (
        cluster.total == 1
        and demand.sequence_parallel == 1
        and demand.ranks <= 1
        and [(engines.num, engines.gpus_each) for engines in demand.engines] == [(1, 1)]
    )
    if not fits:
        raise UserError(
            "`mode: colocate` is one GPU for one engine and one rank: no auxiliary models on it "
            "(`engine_type: transformers` runs one that scores on the processor), "
            "`engine_num: 1`, all parallel sizes 1, `cluster.gpu_per_node: 1`"
        )


def _engine_names(engines: EngineGroup) -> list[str]:
    return [f"{engines.name} {i}" for i in range(engines.num)]


def _without_gpus(demand: GpuDemand) -> list[GpuAssignment]:
    names = [name for engines in demand.engines for name in _engine_names(engines)]
    return [
        GpuAssignment(name, ()) for name in [*names, *(f"rank {i}" for i in range(demand.ranks))]
    ]


def cluster_gpus_of(stage: StagePlan) -> ClusterGpus:
    """Reads section `cluster`."""
    cluster = stage.config.cluster
    return ClusterGpus(nodes=cluster.node_num, gpus_per_node=cluster.gpu_per_node)


def gpu_demand_of(stage: StagePlan) -> GpuDemand:
    """Returns the stage's engines and ranks."""
    return GpuDemand(
        mode=BY_TURNS if stage.takes_turns else stage.mode,
        engines=engine_groups_of(stage) if stage.needs_rollout or stage.mode != "train" else (),
        ranks=stage.trainer_rank_num if "trainer" in stage.roles else 0,
        ranks_on_processor=not stage.num_rank_gpus,
        sequence_parallel=stage.sequence_parallel_size,
    )


def engine_groups_of(stage: StagePlan) -> tuple[EngineGroup, ...]:
    """Returns the engines of the policy, then those of auxiliary models that may take GPUs."""
    rollout = stage.config.explorer.rollout_model
    engines = [] if stage.external_model else [_engine("rollout engine", rollout)]
    own = (model for model in stage.auxiliary_models if model.has_gpus)
    return (*engines, *(_engine(f"{model.name} engine", model.engine) for model in own))


def _engine(name: str, engine: EngineConfig) -> EngineGroup:
    return EngineGroup(
        name=name,
        num=engine.engine_num,
        tensor_parallel=engine.tensor_parallel_size,
        data_parallel=engine.data_parallel_size,
        pipeline_parallel=engine.pipeline_parallel_size,
        kind=engine.engine_type,
    )
