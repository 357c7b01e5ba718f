"""Converts the placement: veRL's roles alternate on GPUs, ours divide them."""

import math
from dataclasses import dataclass

from trinity.verl.rules.back_end import sequence_parallel_size
from trinity.verl.rules.distillation import TEACHER, teacher_gpus
from trinity.verl.work import Conversion

ROLLOUT = "actor_rollout_ref.rollout"
OURS = "explorer.rollout_model"
KIND = "vllm"
_GROUP = "actor_rollout_ref.actor.fsdp_config.fsdp_size"
_GPUS_OF_A_MACHINE = 8
"""GPUs that machines usually have."""
_SHARE = 4
"""One of this many GPUs rolls out, unless the user says otherwise."""


@dataclass(frozen=True, slots=True)
class VerlMachines:
    """Machines and their GPUs."""

    nodes: int
    gpus: int
    """GPUs of each machine."""

    @property
    def total(self) -> int:
        """GPUs of all machines."""
        return self.nodes * self.gpus


def convert_placement(work: Conversion) -> None:
    """Converts section `cluster`, the engines and the auxiliary model."""
    machines, own_gpus = _put_cluster(work)
    per_judge = _reward_model_size(work)
    judges = max(machines.gpus // _SHARE // per_judge, 1) if per_judge else 0
    reserved, per_teacher = teacher_gpus(work)
    if per_teacher:
        judges, per_judge = max(reserved // per_teacher, 1), per_teacher
    per_engine = _fitting_engine_size(work, machines, judges * per_judge)
    engines = _engine_num(work, machines, per_engine, judges * per_judge, own_gpus)
    taken = engines * per_engine + judges * per_judge
    left = machines.total - taken
    work.put(
        f"{OURS}.engine_num",
        engines,
        f"{engines * per_engine} of {machines.total} GPUs roll out, "
        f"{min(max(left, 0), machines.gpus)} train",
        "choose with --engine-num",
    )
    if idle := idle_beside_ranks(work, machines, left):
        _advise_explorers(work, machines, idle)
    _limit_to_whole_groups(work, min(left, machines.gpus))
    _put_engine(work)
    if per_teacher:
        work.put(f"{TEACHER}.engine_num", judges, f"{reserved} GPUs of `distillation`")
    elif per_judge:
        _put_reward_model(work, judges)
    if left < 1:
        unit = "GPU" if machines.total == 1 else "GPUs"
        work.report.advice.append(
            f"rollout takes {taken} of {machines.total} {unit}, and training needs one at least: "
            "here the two do not alternate. Raise `cluster.gpu_per_node` or `cluster.node_num`, "
            f"or lower `{OURS}.tensor_parallel_size`"
        )


def idle_beside_ranks(work: Conversion, machines: VerlMachines, left: int) -> int:
    """Limits ranks to one machine; returns the number of GPUs that this leaves idle."""
    if left <= machines.gpus:
        return 0
    work.put("trainer.rank_num", machines.gpus, "ranks are on one machine")
    return left - machines.gpus


def _limit_to_whole_groups(work: Conversion, ranks: int) -> None:
    """Limits ranks to a multiple of those that share sequences."""
    size = sequence_parallel_size(work)
    if ranks > size and ranks % size:
        whole = ranks - ranks % size
        work.put("trainer.rank_num", whole, f"groups of {size} that share sequences")


def _advise_explorers(work: Conversion, machines: VerlMachines, idle: int) -> None:
    if more := idle // machines.gpus:
        work.report.advice.append(
            f"{idle} of {machines.total} GPUs are idle, as ranks are on one machine and an "
            f"explorer's engines on another: `trinity deploy render --explorers {more + 1}` uses "
            f"{more} machine{'s' if more > 1 else ''} more"
        )


def _put_cluster(work: Conversion) -> tuple[VerlMachines, int]:
    """Converts the machines; returns them and the GPUs that veRL, too, keeps for rollout."""
    trained = VerlMachines(
        work.number("trainer.nnodes", 1, "cluster.node_num"),
        work.number("trainer.n_gpus_per_node", 8, "cluster.gpu_per_node"),
    )
    own = _rollout_gpus(work, trained)
    beside = own + teacher_gpus(work)[0]
    nodes, gpus = trained.nodes, trained.gpus
    if beside and nodes == 1 and gpus + beside <= _GPUS_OF_A_MACHINE:
        gpus += beside
    elif beside and gpus:
        nodes += -(-beside // gpus)
    note = f"{beside} GPUs of their own for rollout or a teacher included" if beside else ""
    work.put("cluster.node_num", nodes, work.origin("trainer.nnodes", trained.nodes), note)
    origin = work.origin("trainer.n_gpus_per_node", trained.gpus)
    work.put("cluster.gpu_per_node", gpus, origin, note)
    return VerlMachines(nodes, gpus), own


def _rollout_gpus(work: Conversion, machines: VerlMachines) -> int:
    """GPUs that veRL, too, sets aside for rollout; 0 if it does not."""
    nodes = work.integer(f"{ROLLOUT}.nnodes", 0) or work.integer("rollout.nnodes", 0)
    own = work.integer(f"{ROLLOUT}.n_gpus_per_node", 0) or work.integer(
        "rollout.n_gpus_per_node", 0
    )
    return nodes * (own or machines.gpus)


def _fitting_engine_size(work: Conversion, machines: VerlMachines, taken: int) -> int:
    """Returns the GPUs of an engine, halved until training has some, too.

    In veRL an engine may hold all GPUs, as training takes turns with it.
    """
    per_engine = _engine_size(work)
    key = f"{ROLLOUT}.tensor_model_parallel_size"
    size, smaller = work.integer(key, 2), work.integer(key, 2)
    while per_engine + taken >= machines.total and smaller > 1 and smaller % 2 == 0:
        smaller, per_engine = smaller // 2, per_engine // 2
    if smaller < size:
        work.put(f"{OURS}.tensor_parallel_size", smaller, f"veRL's {size}, halved for training")
        work.report.advice.append(
            f"{key}={size} would leave no GPU of {machines.total} for training, which does not "
            f"take turns with rollout here: `{OURS}.tensor_parallel_size` is {smaller}. `trinity "
            "config plan` says whether the model fits"
        )
    return per_engine


def _engine_size(work: Conversion) -> int:
    sizes = (
        work.integer(f"{ROLLOUT}.tensor_model_parallel_size", 2),
        work.integer(f"{ROLLOUT}.data_parallel_size", 1),
        work.integer(f"{ROLLOUT}.pipeline_model_parallel_size", 1),
    )
    return max(sizes[0] * sizes[1] * sizes[2], 1)


def _reward_model_size(work: Conversion) -> int:
    """GPUs of an engine of the reward model; 0 without one."""
    for prefix in ("reward_model", "reward.reward_model"):
        if work.settings.value(f"{prefix}.enable", False) is True:
            return work.integer(f"{prefix}.rollout.tensor_model_parallel_size", 1)
    return 0


def _engine_num(
    work: Conversion, machines: VerlMachines, per_engine: int, judge_gpus: int, own_gpus: int
) -> int:
    """The number asked for, or the engines of one machine if there are several machines.

    On one machine a quarter of its GPUs, adjusted so that training gets whole groups.
    """
    if work.choices.engine_num is not None:
        return work.choices.engine_num
    if own_gpus or machines.nodes > 1:
        most = min(own_gpus or machines.gpus, machines.gpus - judge_gpus)
        return max(most // per_engine, 1)
    first = max(machines.total // _SHARE // per_engine, 1)
    group = work.settings.peek(_GROUP)
    ranks = math.lcm(
        group if isinstance(group, int) and group > 0 else 1, sequence_parallel_size(work)
    )
    for engines in range(first, machines.total // per_engine + 1):
        left = machines.total - judge_gpus - engines * per_engine
        if left > 0 and left % ranks == 0:
            return engines
    return first


def _put_engine(work: Conversion) -> None:
    _put_kind(work)
    if work.draft.get(f"{OURS}.tensor_parallel_size") is None:
        work.copy(f"{ROLLOUT}.tensor_model_parallel_size", f"{OURS}.tensor_parallel_size", 2)
    for verl, ours in (
        ("data_parallel_size", "data_parallel_size"),
        ("pipeline_model_parallel_size", "pipeline_parallel_size"),
    ):
        if (setting := work.settings.take(f"{ROLLOUT}.{verl}")) is not None:
            work.put(f"{OURS}.{ours}", setting.value, setting)
    work.copy(f"{ROLLOUT}.gpu_memory_utilization", f"{OURS}.gpu_memory_utilization", 0.5)


def _put_kind(work: Conversion) -> None:
    kind = work.settings.take(f"{ROLLOUT}.name")
    if kind is None:
        return
    if kind.value == KIND:
        work.put(f"{OURS}.engine_type", kind.value, kind)
    else:
        why = "vLLM rolls out in its place, with the same model and sampling"
        work.report.left_out.append((kind, why))


def _put_reward_model(work: Conversion, judges: int) -> None:
    key = "explorer.auxiliary_models[0]"
    is_old = work.settings.value("reward_model.enable", False) is True
    prefix = "reward_model" if is_old else "reward.reward_model"
    path = work.settings.take(f"{prefix}.model.path") or work.settings.take(f"{prefix}.model_path")
    if path is None:
        work.put(f"{key}.model_path", "UNKNOWN", "give the reward model's path")
    else:
        work.put(f"{key}.model_path", path.value, path)
    work.put(f"{key}.engine_num", judges, "engines of the reward model")
    work.copy(f"{prefix}.rollout.tensor_model_parallel_size", f"{key}.tensor_parallel_size", 1)
    for verl, ours in (
        ("gpu_memory_utilization", "gpu_memory_utilization"),
        ("prompt_length", "max_prompt_tokens"),
        ("response_length", "max_response_tokens"),
    ):
        if (setting := work.settings.take(f"{prefix}.rollout.{verl}")) is not None:
            work.put(f"{key}.{ours}", setting.value, setting)
    _put_judge_kind(work, f"{prefix}.rollout.name")
    work.report.advice.append(
        "the reward model runs as `explorer.auxiliary_models`: a workflow calls it and derives the "
        "reward from its answer"
    )


def _put_judge_kind(work: Conversion, key: str) -> None:
    kind = work.settings.peek(key)
    if kind == KIND:
        work.report_not_needed(key, "vLLM is the engine of the reward model, too")
    else:
        work.report_left_out(key, "the reward model runs in vLLM in its place")
