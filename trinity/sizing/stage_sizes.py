"""The machines and memory that a planned stage needs."""

from dataclasses import dataclass

from trinity.config.plan.parts import AuxiliaryModel
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.explorer import EngineConfig
from trinity.sizing.adapter import count_adapter
from trinity.sizing.demand import sequence_parallel_of
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
from trinity.sizing.validator import ValidatorSettings

MOMENTS = {"adam": 2, "sgd": 0}
"""By type of optimizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Memory of one training process."""

    terms: tuple[tuple[str, tuple[Term, ...]], ...]
    """By role."""

    @property
    def total(self) -> int:
        """Peak bytes: all roles keep their state at the same time, but pass one after another."""
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
    """Memory of one GPU of a rollout engine."""

    terms: tuple[Term, ...]
    room: int
    """Bytes for the cache; below 0 the engine does not start."""
    cached_tokens: int
    """Tokens in the cache of the whole engine."""


def training_of(stage: StagePlan) -> Training:
    """Returns the training settings of one rank of the stage."""
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
        sequence_parallel=sequence_parallel_of(stage),
    )


def _shards(stage: StagePlan) -> int:
    """Returns the number of ranks that the weights are sharded over."""
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
    """Returns the policy's settings, with the critic's own where it has any."""
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
    """Returns the memory of the actor, and of reference and critic where the algorithm has them.

    With an adapter the reference is the actor without it.
    """
    training = training or training_of(stage)
    adapter = count_adapter(shape, stage.lora) if stage.lora else None
    roles = [("actor", tuple(policy_terms(shape, training, adapter)))]
    if stage.needs_reference and stage.lora is None:
        roles.append(("reference", tuple(reference_terms(shape, training))))
    if stage.needs_critic:
        roles.append(("critic", tuple(critic_terms(critic or shape, training))))
    return RankMemory(terms=tuple(roles))


def engine_memory(stage: StagePlan, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    """Returns the memory of the rollout engine on GPUs of `gpu_bytes`."""
    return _memory_of(stage.config.explorer.rollout_model, shape, gpu_bytes)


def auxiliary_memory(model: AuxiliaryModel, shape: ModelShape, gpu_bytes: int) -> EngineMemory:
    """Returns the same for an engine of an auxiliary model."""
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
    """Returns the inputs of Trinity-RFT's validator."""
    training = training_of(stage)
    return ValidatorSettings(
        fsdp_size=training.ranks,
        tokens=training.tokens,
        is_16_bit=training.dtype != "float32",
        has_entropy=training.has_entropy,
    )
