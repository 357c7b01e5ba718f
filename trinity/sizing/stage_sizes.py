"""What a planned stage wants of machines and memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from trinity.config.plan import AuxiliaryModel, StagePlan
from trinity.config.rollout_model import EngineConfig
from trinity.sizing.memory import (
    Keeping,
    Term,
    Training,
    at_once,
    cache_room,
    critic_terms,
    engine_terms,
    kv_bytes_per_token,
    policy_terms,
    reference_terms,
)
from trinity.sizing.model_shape import ModelShape
from trinity.sizing.placement import Demand, Engines, Machines
from trinity.sizing.validator import ValidatorSettings

MOMENTS = {"adam": 2, "sgd": 0}
"""By type of optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Of one training process."""

    terms: tuple[tuple[str, tuple[Term, ...]], ...]
    """By role."""

    @property
    def total(self) -> int:
        """Roles keep their state side by side, and pass one after another."""
        kept, most = 0, 0
        for _, terms in self.terms:
            own = [t for t in terms if t.name in ("gathered layers", "activations", "logits")]
            step = [t for t in terms if t.name == "optimizer step"]
            state = [t for t in terms if t not in own and t not in step]
            kept += sum(t.bytes for t in state if not t.rests)
            back = sum(t.bytes for t in state if t.rests)
            most = max(most, back + at_once([*own, *step]))
        return kept + most


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """Of one GPU of a rollout engine."""

    terms: tuple[Term, ...]
    room: int
    """Bytes for the cache; below 0 the engine does not start."""
    cached_tokens: int
    """Of the whole engine."""


def machines_of(stage: StagePlan) -> Machines:
    """Section `cluster`."""
    cluster = stage.config.cluster
    return Machines(nodes=cluster.node_num, gpus_per_node=cluster.gpu_per_node)


def demand_of(stage: StagePlan) -> Demand:
    """Engines and ranks."""
    trainer = _tree(stage, "trainer")
    return Demand(
        mode=stage.mode,
        engines=_engines(stage) if stage.needs_rollout or stage.mode != "train" else (),
        ranks=stage.trainer_rank_num if "trainer" in stage.roles else 0,
        sequence_parallel=_number(trainer, "ulysses_sequence_parallel_size", 1),
    )


def training_of(stage: StagePlan) -> Training:
    """How one rank of the stage trains."""
    trainer = stage.config.trainer
    coefficient = stage.algorithm.entropy_loss_fn_args.get("entropy_coef", 0.0)
    return Training(
        packs_rows=trainer.use_remove_padding,
        has_entropy=stage.algorithm.entropy_loss_fn != "none" and coefficient != 0,
        ranks=_shards(stage),
        policy=_policy_keeping(stage),
        critic=_critic_keeping(stage),
        tokens=stage.max_token_len_per_gpu,
        dtype=trainer.dtype,
        checkpoints_activations=trainer.enable_gradient_checkpointing,
        sequence_parallel=_number(_tree(stage, "trainer"), "ulysses_sequence_parallel_size", 1),
    )


def _shards(stage: StagePlan) -> int:
    """Ranks of a group that the weights are split over."""
    size = stage.config.trainer.fsdp_size
    return min(size, stage.trainer_rank_num) if size > 0 else stage.trainer_rank_num


def _policy_keeping(stage: StagePlan) -> Keeping:
    trainer = stage.config.trainer
    return Keeping(
        moments=MOMENTS[stage.config.algorithm.optimizer.optimizer_type],
        offloads_parameters=trainer.param_offload,
        offloads_optimizer=trainer.optimizer_offload,
        offloads_all=trainer.offload_policy,
    )


def _critic_keeping(stage: StagePlan) -> Keeping:
    """As the policy's, but for what it has of its own."""
    trainer, critic = stage.config.trainer, stage.config.trainer.critic
    parameters, optimizer = critic.param_offload, critic.optimizer_offload
    return Keeping(
        moments=MOMENTS[critic.optimizer.optimizer_type],
        offloads_parameters=trainer.param_offload if parameters is None else parameters,
        offloads_optimizer=trainer.optimizer_offload if optimizer is None else optimizer,
        offloads_all=trainer.offload_policy,
    )


def rank_memory(
    stage: StagePlan,
    shape: ModelShape,
    critic: ModelShape | None,
    training: Training | None = None,
) -> RankMemory:
    """Actor, and the reference and the critic where the algorithm has them."""
    training = training or training_of(stage)
    roles = [("actor", tuple(policy_terms(shape, training)))]
    if stage.needs_reference:
        roles.append(("reference", tuple(reference_terms(shape, training))))
    if stage.needs_critic:
        roles.append(("critic", tuple(critic_terms(critic or shape, training))))
    return RankMemory(terms=tuple(roles))


def engine_memory(stage: StagePlan, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    """Of the rollout engine on GPUs of `gpu_bytes`."""
    return _memory_of(stage.config.explorer.rollout_model, shape, gpu_bytes)


def auxiliary_memory(model: AuxiliaryModel, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    """The same of an engine of a model beside the policy."""
    return _memory_of(model.engine, shape, gpu_bytes)


def _memory_of(engine: EngineConfig, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    gpus = engine.tensor_parallel_size
    room = cache_room(
        shape,
        gpus=gpus,
        dtype=engine.dtype,
        gpu_bytes=gpu_bytes,
        utilization=engine.gpu_memory_utilization,
    )
    a_token = kv_bytes_per_token(shape, engine.tensor_parallel_size, engine.dtype)
    terms = engine_terms(shape, gpus=gpus, dtype=engine.dtype, cache_bytes=room)
    return EngineMemory(terms=tuple(terms), room=room, cached_tokens=max(room, 0) // a_token)


def validator_settings(stage: StagePlan) -> ValidatorSettings:
    """What Trinity-RFT's validator would look at."""
    training = training_of(stage)
    return ValidatorSettings(
        fsdp_size=training.ranks,
        tokens=training.tokens,
        is_16_bit=training.dtype != "float32",
        has_entropy=training.has_entropy,
    )


def _engines(stage: StagePlan) -> tuple[Engines, ...]:
    rollout = _tree(stage, "explorer", "rollout_model")
    found = [] if stage.external_model else [_engine("rollout engine", rollout)]
    for model in stage.auxiliary_models:
        if model.external is None:
            found.append(_engine(f"{model.name} engine", model.engine.model_dump()))
    return tuple(found)


def _engine(name: str, keys: Mapping[str, object]) -> Engines:
    return Engines(
        name=name,
        num=_number(keys, "engine_num", 1),
        tensor_parallel=_number(keys, "tensor_parallel_size", 1),
        data_parallel=_number(keys, "data_parallel_size", 1),
        pipeline_parallel=_number(keys, "pipeline_parallel_size", 1),
        kind=str(keys.get("engine_type", "vllm")),
    )


def _tree(stage: StagePlan, *path: str) -> Mapping[str, object]:
    """A section as plain values: some of its keys are read only where the schema has them."""
    found: object = stage.config.model_dump()
    for name in path:
        found = found.get(name, {}) if isinstance(found, Mapping) else {}
    return found if isinstance(found, Mapping) else {}


def _number(keys: Mapping[str, object], key: str, default: int) -> int:
    value = keys.get(key)
    return value if isinstance(value, int) else default
