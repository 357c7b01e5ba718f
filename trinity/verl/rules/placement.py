"""Converts the placement and how far rollout runs ahead of training.

veRL's roles alternate on GPUs, ours divide them; its fully-async policy and its `trainer.v1` let
rollout run ahead.
"""

import math

from trinity.verl.rules.distillation import TEACHERS, teacher_gpus, teacher_names
from trinity.verl.rules.ranks import (
    GpuShares,
    RolloutDemand,
    VerlMachines,
    divide_gpus,
    put_ranks,
    put_sequence_sharing,
)
from trinity.verl.rules.rewards import REWARD_MODELS, reward_model_scores
from trinity.verl.settings import VerlSetting
from trinity.verl.work import Conversion

ROLLOUT = "actor_rollout_ref.rollout"
OURS = "explorer.rollout_model"
KIND = "vllm"
_GPUS_OF_A_MACHINE = 8
"""GPUs that machines usually have."""
_SHARE = 4
"""One of this many GPUs of a machine judges."""
_SIZES = (
    ("data_parallel_size", "data_parallel_size", 1),
    ("tensor_model_parallel_size", "tensor_parallel_size", 2),
    ("pipeline_model_parallel_size", "pipeline_parallel_size", 1),
)
"""Parallel sizes of an engine, there and here, with veRL's default; halved in this order."""
_ASYNC = "async_training"
_V1 = "trainer.v1"
_STALENESS = 0.1
"""veRL's default of `staleness_threshold` where rollout never waits for a step."""
_SYNC_STEPS = 4
"""veRL's default of `trigger_parameter_sync_step`."""
_SAMPLER = f"{_V1}.sampler"
_MODES = {"sync": 0, "colocate_async": 1, "separate_async": 1}
"""Steps that rollout is ahead, by `trainer.v1.trainer_mode`."""


def convert_placement(work: Conversion) -> None:
    """Converts section `cluster`, the engines and the auxiliary model."""
    machines, own_gpus = _put_cluster(work)
    reserved, per_teacher = teacher_gpus(work)
    per_judge = per_teacher or _reward_model_size(work)
    teachers = len(teacher_names(work)) if per_teacher else 1
    judges = max(_judges(machines, reserved, per_judge) // teachers, 1) * teachers
    others = judges * per_judge
    if _takes_turns(work, machines, own_gpus + others):
        _put_turns(work)
        return
    demand = RolloutDemand(
        per_engine=_fitting_engine_size(work, machines, others),
        others=others,
        own=own_gpus,
        engines=work.choices.engine_num,
    )
    shares = divide_gpus(work, machines, demand)
    _put_shares(work, machines, demand, shares)
    _put_engine(work)
    if machines.spans(demand.per_engine):
        _advise_on_machines(work, machines, demand.per_engine)
    if per_teacher:
        for place in range(teachers):
            key, note = f"{TEACHERS}[{place}].engine_num", f"{reserved} GPUs of `distillation`"
            work.put(key, judges // teachers, note)
    elif per_judge:
        _put_reward_model(work, judges)
    if not shares.ranks:
        _advise_more_gpus(work, machines, demand.gpus(shares.engines))


def _takes_turns(work: Conversion, machines: VerlMachines, apart: int) -> bool:
    """Returns True if one GPU is all there is, and rollout waits for training there."""
    has_one_engine = work.choices.engine_num in (None, 1)
    return machines.total == 1 and not apart and has_one_engine and not runs_ahead(work)


def _put_turns(work: Conversion) -> None:
    """Colocates an engine and a rank on the GPU, as veRL does."""
    work.put("mode", "colocate", "one GPU: engine and trainer take turns on it, as in veRL")
    work.put(f"{OURS}.engine_num", 1, "the GPU has one engine", "and one rank")
    for verl, ours, default in _SIZES:
        if max(work.integer(f"{ROLLOUT}.{verl}", default), 1) > 1:
            work.put(f"{OURS}.{ours}", 1, f"{ROLLOUT}.{verl} on one GPU")
    put_sequence_sharing(work, 1)
    _put_engine(work)


def _judges(machines: VerlMachines, reserved: int, per_judge: int) -> int:
    """Returns the engines of the other model in an explorer; it is on one machine."""
    if not per_judge:
        return 0
    most = (reserved or machines.gpus // _SHARE) // per_judge
    if machines.nodes > 1:
        most = min(most, machines.gpus // 2 // per_judge)
    return max(most, 1)


def _put_shares(
    work: Conversion, machines: VerlMachines, demand: RolloutDemand, shares: GpuShares
) -> None:
    """Writes the engines of an explorer and the ranks, and says what several machines do."""
    rolling = shares.engines * demand.per_engine
    where = f" in each of {shares.explorers} explorers" if shares.explorers > 1 else ""
    work.put(
        f"{OURS}.engine_num",
        shares.engines,
        f"{rolling} of {machines.total} GPUs roll out{where}, {shares.ranks} train",
        "choose with --engine-num",
    )
    left = machines.total - demand.gpus(shares.engines)
    put_ranks(work, shares.ranks, left)
    if shares.ranks:
        put_sequence_sharing(work, shares.sequences)
    each = max(machines.filled_by(demand.gpus(shares.engines)), 1)
    if shares.explorers > 1:
        work.report.advice.append(
            f"{shares.explorers * each} of {machines.nodes} machines roll out, as an explorer is "
            f"on one: `trinity deploy render --explorers {shares.explorers}`"
        )
    taken = shares.explorers * each + machines.filled_by(shares.ranks)
    if machines.nodes > 1 and shares.ranks and taken < machines.nodes:
        work.report.advice.append(
            f"{machines.nodes - taken} of {machines.nodes} machines are idle: {shares.ranks} ranks "
            f"have rows of a step and whole groups. Set `cluster.node_num: {taken}`"
        )


def _advise_more_gpus(work: Conversion, machines: VerlMachines, taken: int) -> None:
    unit = "GPU" if machines.total == 1 else "GPUs"
    work.report.advice.append(
        f"rollout takes {taken} of {machines.total} {unit}, and training needs one at least: "
        "here the two do not alternate. Raise `cluster.gpu_per_node` or `cluster.node_num`, "
        f"or lower `{OURS}.tensor_parallel_size`"
    )


def _put_cluster(work: Conversion) -> tuple[VerlMachines, int]:
    """Converts the machines; returns them and the GPUs that veRL, too, keeps for rollout."""
    trained = VerlMachines(
        work.number("trainer.nnodes", 1, "cluster.node_num"),
        work.number("trainer.n_gpus_per_node", 8, "cluster.gpu_per_node"),
    )
    own = _rollout_gpus(work, trained)
    extra = own + teacher_gpus(work)[0]
    nodes, gpus = trained.nodes, trained.gpus
    if extra and nodes == 1 and gpus + extra <= _GPUS_OF_A_MACHINE:
        gpus += extra
    elif extra and gpus:
        nodes += -(-extra // gpus)
    note = f"including {extra} separate GPUs for rollout or a teacher" if extra else ""
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
    """Returns the GPUs of an engine, lowered until it has room and training has some, too.

    In veRL an engine may hold all GPUs, as training takes turns with it. Copies that share the data
    are on one machine. An engine of whole machines keeps its size, though it is then the only one:
    the script's author may have chosen it because the model does not fit fewer GPUs.
    """
    sizes = [max(work.integer(f"{ROLLOUT}.{verl}", default), 1) for verl, _, default in _SIZES]
    asked, reasons = list(sizes), [""] * len(sizes)
    while math.prod(sizes) > machines.gpus > 0 and sizes[0] > 1:
        sizes[0] //= _smallest_factor(sizes[0])
        reasons[0] = "makes an engine larger than a machine, which its copies share"
    while math.prod(sizes) + taken >= machines.total and any(size % 2 == 0 for size in sizes):
        halved = next(place for place, size in enumerate(sizes) if size % 2 == 0)
        sizes[halved] //= 2
        reasons[halved] = (
            f"would leave no GPU of {machines.total} for training, which does not take turns with "
            "rollout here"
        )
    while (reason := _no_room(work, machines, sizes, taken)) and math.prod(sizes) > 1:
        lowered = next(place for place, size in enumerate(sizes) if size > 1)
        sizes[lowered] //= _smallest_factor(sizes[lowered])
        reasons[lowered] = reason
    for (verl, ours, _), before, size, why in zip(_SIZES, asked, sizes, reasons, strict=True):
        if size < before:
            _put_smaller(work, (f"{ROLLOUT}.{verl}", f"{OURS}.{ours}"), (before, size), why)
    return math.prod(sizes)


def _no_room(work: Conversion, machines: VerlMachines, sizes: list[int], taken: int) -> str:
    """Returns why an explorer cannot have an engine of these sizes; empty if it can.

    It is on one machine, or it is one engine on whole ones.
    """
    size, gpus = math.prod(sizes), machines.gpus
    if machines.nodes < 2 or not gpus or size + taken <= gpus:
        return ""
    if size <= gpus:
        return f"leaves no GPU of a machine's {gpus} for the engines of other models"
    larger = f"makes an engine larger than a machine of {gpus} GPUs"
    if taken or work.choices.engine_num not in (None, 1):
        return f"{larger}, which would have to be the only one of its run"
    return f"{larger} that fills no number of whole ones" if size % gpus else ""


def _smallest_factor(number: int) -> int:
    return next(factor for factor in range(2, number + 1) if number % factor == 0)


def _put_smaller(
    work: Conversion, keys: tuple[str, str], sizes: tuple[int, int], reason: str
) -> None:
    """Writes a smaller size of an engine than veRL's, and says why."""
    (verl, ours), (before, size) = keys, sizes
    work.put(ours, size, f"veRL's {before}, lowered for training or for one machine")
    work.report.advice.append(
        f"{verl}={before} {reason}: `{ours}` is {size}. `trinity config plan` says whether the "
        "model fits"
    )


def _advise_on_machines(work: Conversion, machines: VerlMachines, size: int) -> None:
    """Explains how an engine that is larger than a machine runs."""
    work.report.advice.append(
        f"an engine of {size} GPUs is larger than a machine of {machines.gpus}: it lies over "
        f"{machines.filled_by(size)} machines, started by `trinity deploy render` and not by "
        f"`trinity run`, and is the only one of its run, so {size} of {machines.total} GPUs roll "
        f"out. If the model fits a machine, a smaller `{OURS}.tensor_parallel_size` allows more "
        "engines"
    )


def _reward_model_size(work: Conversion) -> int:
    """GPUs of an engine of the reward model; 0 without one."""
    for prefix in REWARD_MODELS:
        if work.settings.value(f"{prefix}.enable", False) is True:
            return work.integer(f"{prefix}.rollout.tensor_model_parallel_size", 1)
    return 0


def _put_engine(work: Conversion) -> None:
    _put_kind(work)
    for verl, ours, default in _SIZES:
        is_said = work.settings.has(f"{ROLLOUT}.{verl}") or ours == "tensor_parallel_size"
        if is_said and work.draft.get(f"{OURS}.{ours}") is None:
            work.copy(f"{ROLLOUT}.{verl}", f"{OURS}.{ours}", default)
    work.copy(f"{ROLLOUT}.gpu_memory_utilization", f"{OURS}.gpu_memory_utilization", 0.5)


def _put_kind(work: Conversion) -> None:
    kind = work.settings.take(f"{ROLLOUT}.name")
    if kind is None:
        return
    if kind.value == KIND:
        work.put(f"{OURS}.engine_type", kind.value, kind)
    else:
        why = "vLLM rolls out instead, with the same model and sampling"
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
    if reward_model_scores(work):
        work.put(f"{key}.role", "score", f"{prefix}.enable=True", "its scores are the rewards")
        return
    work.report.advice.append(
        "the reward model runs as `explorer.auxiliary_models`: a workflow calls it and derives the "
        "reward from its answer"
    )


def _put_judge_kind(work: Conversion, key: str) -> None:
    kind = work.settings.peek(key)
    if kind == KIND:
        work.report_not_needed(key, "vLLM is the engine of the reward model, too")
    else:
        work.report_left_out(key, "the reward model runs in vLLM instead")


def is_fully_async(work: Conversion) -> bool:
    """True if rollout has separate GPUs and steps, so that steps have no fixed number of tasks."""
    tasks = work.settings.peek("data.train_batch_size")
    is_endless = isinstance(tasks, int) and tasks <= 0
    return is_endless or "fully_async" in work.settings.module


def runs_ahead(work: Conversion) -> bool:
    """True if rollout goes on while the policy is trained."""
    if work.choices.sync_offset is not None:
        return work.choices.sync_offset > 0
    threshold = work.settings.peek(f"{_ASYNC}.staleness_threshold")
    mode = work.settings.peek(f"{_V1}.trainer_mode")
    return is_fully_async(work) or bool(threshold) or bool(_MODES.get(str(mode), 0))


def versions_apart(work: Conversion) -> int:
    """Mini-batches between two versions of the weights."""
    mini_batches = work.integer(f"{_ASYNC}.require_batches", 1)
    is_async = "fully_async" in work.settings.module
    default = _SYNC_STEPS if is_async else 1
    return max(mini_batches * work.integer(f"{_ASYNC}.trigger_parameter_sync_step", default), 1)


def convert_async(work: Conversion, batch: int, interval: int) -> None:
    """Converts the bound on how far rollout is ahead, and the number of its tasks."""
    _put_offset(work, interval)
    _put_total(work, batch)
    _put_max_staleness(work, interval)
    work.settings.take(f"{_ASYNC}.use_rollout_log_probs")  # written with the defaults, at the end
    _put_weight_update(work)
    for name in ("use_trainer_do_validate", "concurrent_samples_per_replica"):
        work.report_left_out(
            f"{_ASYNC}.{name}",
            "the explorer evaluates, and its engine takes as many requests as fit",
        )
    step = work.settings.take(f"{_V1}.separate_async.parameter_sync_step")
    if step is None:
        return
    if step.value == interval:
        work.report.not_needed.append((step, "it is `synchronizer.sync_interval`"))
    else:
        answer = f"veRL wants `train_batch_size / ppo_mini_batch_size` there, which is {interval}"
        work.report.missing.append((step, answer))


def _put_offset(work: Conversion, interval: int) -> None:
    """Writes how far rollout may be ahead where the script says it."""
    threshold = work.settings.take(f"{_ASYNC}.staleness_threshold")
    mode = work.settings.take(f"{_V1}.trainer_mode")
    if work.choices.sync_offset is not None:
        for setting in (threshold, mode):
            if setting is not None:
                work.report.not_needed.append((setting, "`--sync-offset` decides"))
        return
    if threshold is not None or is_fully_async(work):
        _put_threshold(work, threshold, interval)
    if mode is not None and mode.value in _MODES:
        offset = _MODES[str(mode.value)] * interval
        work.put("synchronizer.sync_offset", offset, mode, "steps that rollout is ahead")
    elif mode is not None:
        work.report.missing.append((mode, "give `synchronizer.sync_offset`, steps it is ahead"))


def _put_threshold(work: Conversion, threshold: VerlSetting | None, interval: int) -> None:
    key = f"{_ASYNC}.staleness_threshold"
    share = _STALENESS if threshold is None or threshold.value is None else threshold.value
    if not isinstance(share, int | float):
        return
    note = f"{share} of the {interval} between two versions, and the one in training"
    origin = threshold or f"veRL's default of {key}={share}"
    ahead = math.ceil(share * interval)
    if not ahead or not _changes_amid_runs(work):
        work.put("synchronizer.sync_offset", ahead, origin, note)
        return
    work.draft.remove("synchronizer.sync_offset")
    work.put("synchronizer.sync_style", "fully_async", origin, "rollout waits for no step")
    work.put("explorer.max_inflight_batches", ahead + 1, origin, note)


def _changes_amid_runs(work: Conversion) -> bool:
    """True if rollouts without common steps go on while weights change, veRL's default."""
    is_partial = work.settings.peek(f"{_ASYNC}.partial_rollout") is not False
    replays = work.draft.get("algorithm.enable_router_replay")
    return is_fully_async(work) and is_partial and not replays


def _put_weight_update(work: Conversion) -> None:
    """Converts whether unfinished rollouts go on with new weights."""
    setting = work.settings.take(f"{_ASYNC}.partial_rollout")
    is_ahead = work.draft.get("synchronizer.sync_offset") != 0
    if setting is not None:
        keeps = setting.value is True and is_ahead
        keeps = keeps and not work.draft.get("algorithm.enable_router_replay")
        note = "" if keeps == setting.value else "each run has one version of the weights"
        work.put("synchronizer.weight_update", "keep" if keeps else "drain", setting, note)


def _put_total(work: Conversion, batch: int) -> None:
    """Converts the number of tasks of the run to steps, or an older trainer's passes over them."""
    key = "rollout.total_rollout_steps"
    total, epochs = work.settings.take(key), work.settings.take("rollout.total_epochs")
    if total is None or total.value is None:
        if epochs is not None:
            work.put("buffer.total_epochs", epochs.value, epochs)
        return
    if epochs is not None:
        work.report.not_needed.append((epochs, f"`{key}` decides"))
    if not isinstance(total.value, int):
        work.report.missing.append((total, f"give {key}=<number> behind the script"))
        return
    steps = max(total.value // batch, 1)
    note = f"{total.value} tasks / {batch} (`buffer.batch_size`)"
    work.put("buffer.total_steps", steps, total, note)
    work.put("trainer.total_steps", steps, total, note)


def _put_max_staleness(work: Conversion, interval: int) -> None:
    """Converts the most versions that an experience may span, itself included."""
    most = work.settings.take(f"{_SAMPLER}.max_off_policy_threshold")
    strategy = work.settings.take(f"{_SAMPLER}.max_off_policy_strategy")
    if strategy is not None and strategy.value != "drop":
        answer = "stale samples are left out (`algorithm.sample_strategy: staleness_control`)"
        work.report.missing.append((strategy, answer))
    elif strategy is not None:
        work.report.not_needed.append((strategy, "`staleness_control` leaves old rows out"))
    if most is None or not isinstance(most.value, int):
        return
    note = f"{most.value} versions, {interval} steps each"
    work.put("algorithm.sample_strategy", "staleness_control", most)
    args = "algorithm.sample_strategy_args.max_staleness"
    work.put(args, most.value * interval - 1, most, note)
