"""The models that a stage has engines for: its policy and those beside it."""

from dataclasses import dataclass, replace

from trinity.config.plan import StagePlan
from trinity.config.plan_parts import AuxiliaryModel, ExternalAccess
from trinity.config.rollout_model import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class StageModel:
    """What engines are started for; those of an equal one may go on."""

    path: str
    max_len: int
    chat_template: str | None
    enable_thinking: bool | None
    rollout: EngineConfig
    has_api: bool
    serves: bool = False
    external: ExternalAccess | None = None
    """Where it is, if others serve it."""
    name: str = ""
    """Of a model beside the policy."""
    first_gpu: int = 0
    gpus_of_process: int = 0

    @property
    def role(self) -> str:
        """How sentences call its engine."""
        return f"the engine of {self.name}" if self.name else "the rollout engine"


def stage_models(plan: StagePlan) -> tuple[StageModel, ...]:
    """The policy first; the GPUs of the others come after its own, in their order."""
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
    for one in plan.auxiliary_models:
        models.append(replace(_beside(one), first_gpu=first_gpu, gpus_of_process=total))
        first_gpu += one.engine.num_gpus
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
