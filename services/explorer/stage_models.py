"""The models that a stage has engines for: its policy and the auxiliary models."""

from dataclasses import dataclass, replace

from trinity.config.plan import StagePlan
from trinity.config.plan_parts import AuxiliaryModel, ExternalAccess
from trinity.config.rollout_model import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """A model to start engines for; running engines of an equal one are kept."""

    path: str
    max_len: int
    chat_template: str | None
    enable_thinking: bool | None
    rollout: EngineConfig
    has_api: bool
    serves: bool = False
    external: ExternalAccess | None = None
    """Access to the model, if others serve it."""
    name: str = ""
    """Name of an auxiliary model; empty for the policy."""
    first_gpu: int = 0
    gpus_of_process: int = 0

    @property
    def role(self) -> str:
        """Name of the model's engine in messages."""
        return f"the engine of {self.name}" if self.name else "the rollout engine"


def stage_models(plan: StagePlan) -> tuple[StageModel, ...]:
    """Returns the policy first; the GPUs of the others follow its own, in the same order."""
    rollout = plan.config.explorer.rollout_model
    total = plan.num_rollout_gpus
    policy = StageModel(
        path=plan.model_path,
        max_len=plan.max_model_len,
        chat_template=plan.chat_template,
        enable_thinking=plan.config.model.enable_thinking,
        rollout=rollout,
        has_api=rollout.enable_openai_api,
        serves=plan.mode == "serve",
        external=plan.external_model,
        gpus_of_process=total,
    )
    models = [policy]
    first_gpu = 0 if plan.external_model is not None else rollout.num_gpus
    for model in plan.auxiliary_models:
        models.append(replace(_beside(model), first_gpu=first_gpu, gpus_of_process=total))
        first_gpu += model.engine.num_gpus
    return tuple(models)


def _beside(model: AuxiliaryModel) -> StageModel:
    return StageModel(
        name=f"auxiliary model `{model.name}`",
        path=model.model_path,
        max_len=model.max_model_len,
        chat_template=model.chat_template,
        enable_thinking=model.enable_thinking,
        rollout=model.engine,
        has_api=True,
        external=model.external,
    )
