"""verl's training worker, set up for a stage: as the actor, the reference or the critic."""

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from services.trainer.backend import cpu

cpu.install()

from verl.trainer.config import CheckpointConfig  # noqa: E402  # the platform must stand first
from verl.utils.device import get_device_name, get_vendor  # noqa: E402
from verl.workers.config import (  # noqa: E402
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    TrainingWorkerConfig,
)
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine_workers_tinker import TinkerTrainingWorker  # noqa: E402

from services.trainer.backend.config_overrides import (  # noqa: E402
    check_attention,
    check_override,
    import_library,
    lay_rope,
    load_config,
    name_key_value_heads,
    supports_sdpa,
    with_override,
    without_dropout,
    without_rope,
)
from services.trainer.backend.packed_attention import register  # noqa: E402
from services.trainer.backend.row_engine import RowEngine, RowValueEngine  # noqa: E402
from services.trainer.backend.vision import TOWER, freeze_tower  # noqa: E402
from services.trainer.collectives import check_gpus_of  # noqa: E402
from services.trainer.types import TrainRow  # noqa: E402
from trinity.config.model_code_policy import trusts_model_code  # noqa: E402
from trinity.config.plan.arithmetic import (  # noqa: E402
    PACKED_ATTENTION,
    HeadSettings,
    Keys,
    dropped_by,
    head_obstacle,
    head_settings,
    laid_over,
    model_keys,
    noise_of,
    packing_obstacle,
    sharing_obstacle,
)
from trinity.config.plan.sizes import plans_shared_prompts  # noqa: E402
from trinity.config.plan.stage_plan import StagePlan  # noqa: E402
from trinity.config.schema.algorithm import OptimizerConfig  # noqa: E402
from trinity.config.schema.model import LoRAConfig  # noqa: E402
from trinity.config.schema.trainer import CriticConfig, TrainerConfig  # noqa: E402
from trinity.data.conversations import FAMILIES  # noqa: E402
from trinity.errors import UserError  # noqa: E402

logger = logging.getLogger(__name__)

FULL_STATE = ["model", "optimizer", "extra"]
ModelKind = Literal["language_model", "value_model"]
OPTIMIZERS: dict[str, tuple[str, dict[str, bool]]] = {
    "adam": ("AdamW", {"fused": True}),
    "sgd": ("SGD", {}),
}
"""PyTorch's names and options; it has no fused gradient descent for sharded weights."""
CHUNKED_HEAD = (
    "use_fused_kernels",
    "entropy_from_logits_with_chunking",
    "entropy_checkpointing",
)
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


# verl prefers a vendor's engine to the device's own.
for _kind, _engine in (("language_model", RowEngine), ("value_model", RowValueEngine)):
    EngineRegistry.register(_kind, "fsdp2", get_device_name(), get_vendor())(_engine)
register()


def packs_rows(worker: TinkerTrainingWorker) -> bool:
    """Returns True if the worker's model takes rows without padding."""
    return bool(worker.engine.model_config.use_remove_padding)


def shares_prompts(worker: TinkerTrainingWorker, rows: Sequence[TrainRow]) -> bool:
    """Returns True if rows of one prompt compute it once.

    Gates that are balanced, or that repeat the engine's choices, see the tokens of every row.
    """
    engine = worker.engine
    is_free = engine.balance is None and all(row.routed_experts is None for row in rows)
    return bool(engine.shares_prompts) and is_free


@contextmanager
def without_replay(worker: TinkerTrainingWorker) -> Iterator[None]:
    """Lets the gates of a mixture of experts choose by themselves."""
    worker.engine.replays_experts = False
    try:
        yield
    finally:
        worker.engine.replays_experts = True


@dataclass(frozen=True, slots=True)
class _RowKernel:
    """The attention that a model is loaded with, and the form in which it takes rows."""

    attention: str
    packs: bool


def _row_kernel(plan: StagePlan, keys: Keys, *, has_sdpa: bool) -> _RowKernel:
    """Chooses the attention kernel, and packed rows where the model supports them.

    A kernel that ignores a feature of the model is not used; `eager` and our own support them all.
    """
    has_flash = cpu.attention_kernel() == cpu.FLASH_ATTENTION
    suits_flash = has_flash and not dropped_by(cpu.FLASH_ATTENTION, keys)
    suits_sdpa = has_sdpa and not dropped_by("sdpa", keys)
    otherwise = "sdpa" if suits_sdpa else "eager"
    padded = _RowKernel(cpu.FLASH_ATTENTION if suits_flash else otherwise, packs=False)
    if not plan.config.trainer.use_remove_padding:
        return padded
    obstacle = packing_obstacle(keys)
    _check_sharing(plan.sequence_parallel_size, keys, obstacle)
    if obstacle is not None:
        logger.info("rows are padded", extra={"reason": obstacle})
        return padded
    takes_flash = suits_flash and not plans_shared_prompts(plan)
    return _RowKernel(cpu.FLASH_ATTENTION if takes_flash else PACKED_ATTENTION, packs=True)


def _check_sharing(size: int, keys: Keys, obstacle: str | None) -> None:
    """Raises: UserError if ranks cannot share the model's sequences."""
    if size == 1:
        return
    if (obstacle := obstacle or sharing_obstacle(keys, size)) is not None:
        raise UserError(
            f"`trainer.ulysses_sequence_parallel_size: {size}` does not fit the model: {obstacle}; "
            "give 1, or a size that fits"
        )


def build_actor(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """Builds the worker whose weights are trained, starting from the model's.

    Raises: UserError when the model cannot be read, or there are fewer GPUs than planned.
    """
    check_gpus_of(plan)
    trainer = plan.config.trainer
    optimizer = _optimizer_config(plan.config.algorithm.optimizer, trainer.grad_clip)
    return _build(plan, model_directory, "language_model", optimizer, plan.lora)


def build_reference(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """Builds a worker that only computes log-probabilities, sharded as the actor is.

    One that moves keeps its weights in float32, in which small moves are not lost.
    """
    return _build(plan, model_directory, "language_model", None)


def build_teacher(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """Builds a worker of another model; settings of the policy's own model are not laid over it."""
    return _build(_of_another_model(plan), model_directory, "language_model", None)


def _of_another_model(plan: StagePlan) -> StagePlan:
    config = plan.config
    whole_head = dict.fromkeys(CHUNKED_HEAD, False)
    trainer = config.trainer.model_copy(update={"override_config": {}, **whole_head})
    model = config.model.model_copy(update={"rope_scaling": {}, "rope_theta": None})
    algorithm = config.algorithm.model_copy(update={"reference_interval": 0})
    sections = {"trainer": trainer, "model": model, "algorithm": algorithm}
    return plan.model_copy(update={"config": config.model_copy(update=sections)})


def build_critic(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """Builds the worker that learns values; its head is random, but the same in every life."""
    critic = plan.config.trainer.critic
    optimizer = _optimizer_config(critic.optimizer, critic.grad_clip)
    return _build(plan, model_directory, "value_model", optimizer)


def _build(
    plan: StagePlan,
    model_directory: Path,
    kind: ModelKind,
    optimizer: FSDPOptimizerConfig | None,
    lora: LoRAConfig | None = None,
) -> TinkerTrainingWorker:
    """Builds a worker; without an optimizer it only infers, with an adapter it trains only that."""
    checkpoint = CheckpointConfig(
        save_contents=FULL_STATE, load_contents=FULL_STATE, save_lora_only=lora is not None
    )
    try:
        worker = TinkerTrainingWorker(
            TrainingWorkerConfig(
                model_type=kind,
                model_config=_model_config(plan, model_directory, kind, lora),
                engine_config=_engine_config(
                    plan, model_directory, kind, forward_only=optimizer is None
                ),
                optimizer_config=optimizer,
                checkpoint_config=checkpoint,
            )
        )
        worker.reset()
        if plan.config.trainer.freeze_vision_tower:
            freeze_tower(worker.engine.module)
        worker.engine.shares_prompts = plans_shared_prompts(plan) and _can_share(worker)
    except (OSError, ValueError, KeyError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        remedy = "`model.model_path` must be a Hugging Face directory of a causal language model"
        if "attention" in reason or "attn_" in reason:
            remedy = f"{remedy}; if `override_config.attn_implementation` is given, leave it out"
        raise UserError(
            f"the model in {model_directory} cannot be read ({reason}): {remedy}"
        ) from error
    return worker


def _can_share(worker: TinkerTrainingWorker) -> bool:
    """Returns True if the model has our own attention, and draws no noise for each row."""
    config = worker.engine.model_config
    attention = config.override_config.get("attn_implementation")
    is_ours = bool(config.use_remove_padding) and attention == PACKED_ATTENTION
    is_text = config.hf_config.model_type not in FAMILIES
    return is_ours and is_text and not noise_of(config.hf_config.to_dict())


def _model_config(
    plan: StagePlan, model_directory: Path, kind: ModelKind, lora: LoRAConfig | None
) -> HFModelConfig:
    """Raises: UserError if the user's overrides do not fit the model."""
    of_role = _config_of(plan, kind)
    section = "trainer.critic" if kind == "value_model" else "trainer"
    import_library(of_role.external_lib, section)
    trusts_code = trusts_model_code(plan.config.model.trust_remote_code, str(model_directory))
    own = load_config(model_directory, trusts_code=trusts_code)
    check_override(of_role.override_config, own, section)
    has_flash = cpu.attention_kernel() == cpu.FLASH_ATTENTION
    actual = laid_over(own.to_dict(), of_role.override_config)
    check_attention(of_role.override_config, section, actual, has_flash=has_flash)
    name_key_value_heads(own, model_directory)
    keys = model_keys(model_directory, of_role.override_config) or {}
    rows = _row_kernel(plan, actual, has_sdpa=supports_sdpa(own))
    is_vision = own.model_type in FAMILIES
    kernel = {"attn_implementation": rows.attention}
    config = HFModelConfig(
        path=str(model_directory),
        load_tokenizer=False,
        trust_remote_code=trusts_code,
        use_remove_padding=rows.packs,
        enable_gradient_checkpointing=(
            plan.critic_recomputes_activations
            if kind == "value_model"
            else plan.recomputes_activations
        ),
        external_lib=of_role.external_lib,
        override_config=with_override(
            without_dropout(own), kernel, without_rope(of_role.override_config)
        ),
        **_adapter_config(plan, lora, is_vision),
    )
    is_own_model = kind == "value_model" and bool(plan.config.model.critic_model_path)
    rope = None if is_own_model else plan.config.model
    lay_rope(config.hf_config, keys, of_role.override_config, rope)
    return config


def _adapter_config(plan: StagePlan, lora: LoRAConfig | None, is_vision: bool) -> dict[str, object]:
    """Returns verl's settings for an adapter, which is on the language part of a vision model."""
    if lora is None:
        return {}
    targets, excluded = lora.targets, lora.excluded
    if is_vision:
        names = excluded if isinstance(excluded, str) else "|".join(map(re.escape, excluded))
        own = names if isinstance(excluded, str) else rf"(.*\.)?({names})"
        excluded = "|".join([*([own] if names else []), rf".*\b{TOWER}\..*"])
    return {
        "lora_rank": lora.lora_rank,
        "lora_alpha": lora.lora_alpha,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "exclude_modules": (excluded if isinstance(excluded, str) else list(excluded)) or None,
        "lora_adapter_path": plan.adapter_path,
    }


def _config_of(plan: StagePlan, kind: ModelKind) -> TrainerConfig | CriticConfig:
    trainer = plan.config.trainer
    return trainer.critic if kind == "value_model" else trainer


def _offload_flags(plan: StagePlan, kind: ModelKind) -> tuple[bool, bool]:
    """Returns two flags: weights, and the optimizer, are offloaded from the device between uses."""
    trainer, of_role = plan.config.trainer, _config_of(plan, kind)
    parameters, optimizer = of_role.param_offload, of_role.optimizer_offload
    return (
        trainer.param_offload if parameters is None else parameters,
        trainer.optimizer_offload if optimizer is None else optimizer,
    )


def _engine_config(
    plan: StagePlan, model_directory: Path, kind: ModelKind, *, forward_only: bool
) -> FSDPEngineConfig:
    """Keeps weights and gradient sums in float32; the passes compute in the plan's type."""
    trainer = plan.config.trainer
    head = _head_of(plan, model_directory)
    computed = SHORT_DTYPES[trainer.dtype]
    param_offload, optimizer_offload = _offload_flags(plan, kind)
    return FSDPEngineConfig(
        strategy=trainer.trainer_strategy,
        forward_only=forward_only,
        param_offload=param_offload,
        optimizer_offload=optimizer_offload,
        offload_policy=trainer.offload_policy,
        fsdp_size=trainer.fsdp_size,
        forward_prefetch=trainer.forward_prefetch,
        model_dtype=computed if forward_only and not plan.moves_reference else "fp32",
        mixed_precision={"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=1,
        infer_micro_batch_size_per_gpu=1,
        use_torch_compile=False,
        entropy_from_logits_with_chunking=head.is_chunked,
        entropy_checkpointing=head.recomputes,
        ulysses_sequence_parallel_size=plan.sequence_parallel_size,
        seed=plan.config.seed,
    )


def _head_of(plan: StagePlan, model_directory: Path) -> HeadSettings:
    """Returns the way in which the head is computed: whole where the model changes its logits."""
    head = head_settings(plan.config.trainer)
    trusts_code = trusts_model_code(plan.config.model.trust_remote_code, str(model_directory))
    own = load_config(model_directory, trusts_code=trusts_code)
    keys = laid_over(own.to_dict(), plan.config.trainer.override_config)
    if head.is_chunked and (obstacle := head_obstacle(keys)) is not None:
        logger.info("the head is computed whole", extra={"reason": obstacle})
        return HeadSettings()
    return head


def _optimizer_config(optimizer: OptimizerConfig, grad_clip: float) -> FSDPOptimizerConfig:
    """Keeps verl's own schedule constant, as the learning rate is given for each step."""
    name, options = OPTIMIZERS[optimizer.optimizer_type]
    own = {"eps": optimizer.eps} if name == "AdamW" else {}
    return FSDPOptimizerConfig(
        optimizer=name,
        lr=optimizer.lr,
        lr_scheduler_type="constant",
        lr_warmup_steps=0,
        total_training_steps=1,
        weight_decay=optimizer.weight_decay,
        betas=optimizer.betas,
        clip_grad=grad_clip,
        override_optimizer_config={**options, **own},
    )
