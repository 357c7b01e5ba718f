"""verl's training worker, set up for a stage: as the actor or as the reference."""

from pathlib import Path

from services.trainer import cpu_platform

cpu_platform.install()

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

from services.trainer.padded_engine import PaddedEngine  # noqa: E402
from trinity.config import StagePlan  # noqa: E402
from trinity.errors import UserError  # noqa: E402

FULL_STATE = ["model", "optimizer", "extra"]
SHORT_DTYPES = {"float32": "fp32", "bfloat16": "bf16"}


# An engine of a vendor goes before the device's own.
EngineRegistry.register("language_model", "fsdp2", get_device_name(), get_vendor())(PaddedEngine)


def packs_rows(plan: StagePlan) -> bool:
    """Whether rows travel without padding, which only flash attention makes worth while."""
    has_flash = cpu_platform.attention_kernel() == "flash_attention_2"
    return plan.config.trainer.use_remove_padding and has_flash


def build_actor(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """The worker whose weights learn, starting from the model's.

    Raises: UserError when the model cannot be read.
    """
    return _build(plan, model_directory, forward_only=False)


def build_reference(plan: StagePlan, model_directory: Path) -> TinkerTrainingWorker:
    """A worker that only computes log-probabilities, sharded as the actor is."""
    return _build(plan, model_directory, forward_only=True)


def _build(plan: StagePlan, model_directory: Path, *, forward_only: bool) -> TinkerTrainingWorker:
    try:
        worker = TinkerTrainingWorker(
            TrainingWorkerConfig(
                model_type="language_model",
                model_config=_model_config(plan, model_directory),
                engine_config=_engine_config(plan, forward_only=forward_only),
                optimizer_config=_optimizer_config(plan),
                checkpoint_config=CheckpointConfig(
                    save_contents=FULL_STATE, load_contents=FULL_STATE
                ),
            )
        )
        worker.reset()
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise UserError(
            f"the model in {model_directory} cannot be read ({str(error).splitlines()[0]}): "
            "`model.model_path` must be a Hugging Face directory of a causal language model"
        ) from error
    return worker


def _model_config(plan: StagePlan, model_directory: Path) -> HFModelConfig:
    return HFModelConfig(
        path=str(model_directory),
        load_tokenizer=False,
        use_remove_padding=packs_rows(plan),
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": cpu_platform.attention_kernel()},
    )


def _engine_config(plan: StagePlan, *, forward_only: bool) -> FSDPEngineConfig:
    """Weights and sums of gradients stay in float32; the passes compute in the plan's type."""
    computed = SHORT_DTYPES[plan.config.trainer.dtype]
    return FSDPEngineConfig(
        strategy=plan.config.trainer.trainer_strategy,
        forward_only=forward_only,
        model_dtype=computed if forward_only else "fp32",
        mixed_precision={"param_dtype": computed, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=1,
        infer_micro_batch_size_per_gpu=1,
        use_torch_compile=False,
        use_remove_padding=packs_rows(plan),
        seed=plan.config.seed,
    )


def _optimizer_config(plan: StagePlan) -> FSDPOptimizerConfig:
    """The schedule is given step by step, so verl's own stays constant and is never asked."""
    optimizer = plan.config.algorithm.optimizer
    return FSDPOptimizerConfig(
        optimizer="AdamW",
        lr=optimizer.lr,
        lr_scheduler_type="constant",
        lr_warmup_steps=0,
        total_training_steps=1,
        weight_decay=optimizer.weight_decay,
        betas=optimizer.betas,
        clip_grad=plan.config.trainer.grad_clip,
        override_optimizer_config={"fused": True},
    )
