"""The plan derived from a configuration: services act on it; it travels as JSON."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from trinity.algorithm.policy_loss import LOSSES_OF_SCHEMA
from trinity.config.plan.parts import (
    AbsolutePath,
    AuxiliaryModel,
    EvaluatedRun,
    ExternalAccess,
    PlanModel,
    ResolvedAlgorithm,
    ResolvedExperienceBuffer,
    ResolvedOperator,
    ResolvedReplay,
    ResolvedTaskset,
    ServedRun,
    StoredBatches,
    StoredRollouts,
    TrainStepUnit,
    fresh_rows,
    required_tasks,
    total_steps,
    train_steps_from,
)
from trinity.config.schema.choices import LearningRateSchedule, Mode
from trinity.config.schema.experiment import Config
from trinity.config.schema.model import LoRAConfig

Role = Literal["trainer", "explorer"]


class StagePlan(PlanModel):
    """One stage: its merged configuration and the values derived from it.

    stage = ExperimentPlan.model_validate_json(text).stages[0]
    stage.required_version(explore_step=5)
    stage.learning_rate(step=1, total_train_steps=stage.num_train_steps(num_rows=2000))
    """

    index: int
    name: str
    mode: Mode
    roles: tuple[Role, ...]
    """The services whose completion ends the stage."""
    config: Config
    """The merged configuration of this stage, without `stages`."""
    algorithm: ResolvedAlgorithm
    operators: tuple[ResolvedOperator, ...] = ()
    """Operators on the explorer's experiences, in order, before the advantage function."""
    model_path: str
    """Absolute directory or hub name; a later stage starts from the weights of the one before."""
    start_checkpoint: str | None = None
    """Absolute folder of a former run's checkpoint that the stage begins with, if any."""
    critic_model_path: str | None
    """The same for the model that the critic starts from; None without a critic."""
    teacher_model_path: str | None = None
    """The same for the model that `algorithm.distillation` names, if any."""
    adapter_path: str | None = None
    """Absolute directory of the adapter that the stage begins with; None for one at zero."""
    chat_template: str | None
    """Text of the chat template, if not the tokenizer's."""
    max_model_len: int
    max_prompt_tokens: int
    max_response_tokens: int
    min_response_tokens: int
    train_batch_size: int
    """Experiences (mode train: rows) of one train step, or the most of one update of its weights
    where a train step is an explore step."""
    train_step: TrainStepUnit = "rows"
    """The rows of a batch, or all that an explore step made."""
    num_expert_rows: int = 0
    """How many of them are rows of data, which the explorer did not make."""
    rows_per_explore_step: int
    """Experiences that one explore step makes at least, if none is filtered; 0 without explorer."""
    total_explore_steps: int | None
    """None if the taskset's size decides: see `num_explore_steps`."""
    total_train_steps: int | None
    """None if the data's size decides: see `num_train_steps`."""
    trainer_rank_num: int
    max_token_len_per_gpu: int
    """Tokens of one micro-batch on one rank."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of each training process; None leaves it to the service's environment. A resumed run
    keeps them, since sums in another order end in other bits."""
    tasksets: tuple[ResolvedTaskset, ...] = ()
    """Tasks that are explored to train on; none in mode train."""
    eval_tasksets: tuple[ResolvedTaskset, ...]
    eval_interval: int
    """Explore steps between evaluations, each of which has a version of the weights."""
    experience_buffer: ResolvedExperienceBuffer
    auxiliary_buffers: tuple[ResolvedExperienceBuffer, ...]
    """Rows of data that are mixed in."""
    auxiliary_models: tuple[AuxiliaryModel, ...] = ()
    """Models that workflows may call in addition to the policy."""
    external_model: ExternalAccess | None = None
    """A model served elsewhere that replaces the policy in evaluation or exploring, if any."""
    lr_schedule: LearningRateSchedule
    critic_lr_schedule: LearningRateSchedule
    """Not used without a critic."""
    takes_turns: bool = False
    """True if engine and trainer use one GPU by turns."""
    stored_batches: StoredBatches | None = None
    """Recorded batches that are trained again, in place of new ones."""
    stored_rollouts: StoredRollouts | None = None
    """Experiences of an earlier stage or run that the stage trains on, if any."""
    benched: EvaluatedRun | None = None
    """The run whose checkpoints are evaluated, in mode bench."""
    served: ServedRun | None = None
    """The run whose weights are served, in mode serve; None serves the model alone."""

    @property
    def taskset(self) -> ResolvedTaskset | None:
        """The first taskset that is trained on, if any."""
        return self.tasksets[0] if self.tasksets else None

    @property
    def lora(self) -> LoRAConfig | None:
        """The trained adapter; None if all weights are trained."""
        return self.config.model.lora

    @property
    def algorithm_type(self) -> str:
        """Name of the algorithm."""
        return self.algorithm.algorithm_type

    @property
    def needs_reference(self) -> bool:
        """True if anything uses the model that the stage started from."""
        return self.algorithm.needs_reference

    @property
    def moves_reference(self) -> bool:
        """True if the reference follows the policy."""
        return self.needs_reference and self.config.algorithm.reference_interval > 0

    @property
    def loss_scale_factor(self) -> int:
        """The divisor of `seq-mean-token-sum-norm`."""
        return self.config.algorithm.loss_scale_factor or self.max_response_tokens

    @property
    def needs_critic(self) -> bool:
        """True if a value model is trained."""
        return self.algorithm.needs_critic

    @property
    def needs_rollout(self) -> bool:
        """True if the stage has an explorer."""
        return "explorer" in self.roles

    @property
    def has_rollouts(self) -> bool:
        """True if its rows are rollouts: an explorer's, or stored ones of a stage that had one."""
        if self.needs_rollout or self.stored_rollouts is not None:
            return True
        return self.stored_batches is not None and self.taskset is not None

    @property
    def needs_training(self) -> bool:
        """True if a trainer publishes weights; else the stage keeps those it starts with."""
        return "trainer" in self.roles

    @property
    def sequence_parallel_size(self) -> int:
        """Ranks that share each sequence; those of a bench only read checkpoints, in any number."""
        is_bench = self.mode == "bench"
        return 1 if is_bench else self.config.trainer.ulysses_sequence_parallel_size

    @property
    def recomputes_activations(self) -> bool:
        """True if the policy's activations are computed again in the backward pass."""
        return self._recomputes(self.config.trainer.enable_gradient_checkpointing)

    @property
    def critic_recomputes_activations(self) -> bool:
        """The same for the critic."""
        return self._recomputes(self.config.trainer.critic.enable_gradient_checkpointing)

    def _recomputes(self, configured: bool | None) -> bool:
        """Memory is short on GPUs, so there it is the default."""
        return self.config.cluster.gpu_per_node > 0 if configured is None else configured

    @property
    def num_rollout_gpus(self) -> int:
        """GPUs of one explorer's engines of all models, if the machines have GPUs."""
        explorer = self.config.explorer
        own = 0 if self.external_model is not None else explorer.rollout_model.num_gpus
        return own + sum(model.engine.num_gpus for model in self.auxiliary_models)

    @property
    def headline_taskset(self) -> str:
        """Name of the evaluation taskset by which versions are compared; empty without any."""
        names = [taskset.name for taskset in self.eval_tasksets]
        asked = self.config.explorer.best_taskset
        chosen = [name for name in (asked, f"{asked}_eval") if asked and name in names]
        return next(iter([*chosen, *names]), "")

    @property
    def num_rank_gpus(self) -> int:
        """GPUs of the ranks; 0 in a bench, which does not train, if the engines leave too few."""
        cluster = self.config.cluster
        total = cluster.node_num * cluster.gpu_per_node
        spare = total - self.num_rollout_gpus
        is_short = self.mode == "bench" and spare < self.trainer_rank_num
        return 0 if not total or is_short else self.trainer_rank_num

    @property
    def transfers_weights_in_memory(self) -> bool:
        """True if weights go from the trainer's memory to engines, and not through files alone."""
        has_both = self.mode == "both" and self.needs_training and self.needs_rollout
        # Copies of the weights in one engine number their workers alike.
        is_single = self.config.explorer.rollout_model.data_parallel_size == 1
        is_asked = self.config.synchronizer.sync_method == "nccl" and not self.takes_turns
        return has_both and is_single and is_asked

    @property
    def longest_unit(self) -> int:
        """Tokens of the longest unit that a micro-batch must hold: a sequence, or two of a row."""
        return self.max_model_len * (2 if self.algorithm.row_schema in LOSSES_OF_SCHEMA else 1)

    @property
    def trains_explore_steps(self) -> bool:
        """True if a train step is one explore step, however many samples that has."""
        return self.train_step == "explore_step"

    @property
    def num_rollout_rows(self) -> int:
        """Rows of one train step, or of one of its updates, that come from rollouts."""
        return self.train_batch_size - self.num_expert_rows

    @property
    def num_droppable_tasks(self) -> int:
        """Tasks of an explore step that may be left behind."""
        return self.config.buffer.batch_size - required_tasks(self.config)

    @property
    def replay(self) -> ResolvedReplay | None:
        """Order and reuse of experiences; None if they are trained in order, once."""
        return self.experience_buffer.replay

    @property
    def num_fresh_rows(self) -> int:
        """New rollouts of one train step, if each run gives one; the rest was trained before."""
        if self.trains_explore_steps:
            return self.rows_per_explore_step
        return fresh_rows(self.replay, self.num_rollout_rows, self.rows_per_explore_step)

    def num_updates(self, num_rows: int) -> int:
        """Updates of the weights, in each pass, of a train step that has so many rows."""
        if not self.trains_explore_steps:
            return 1
        return max(-(-num_rows // self.train_batch_size), 1)

    def with_train_step(self, unit: TrainStepUnit) -> "StagePlan":
        """Returns the plan with train steps that are made of something else."""
        if unit == self.train_step:
            return self
        plan = self.model_copy(update={"train_step": unit})
        steps = total_steps(
            plan.config,
            rows_per_train_step=plan.num_fresh_rows,
            rows_per_explore_step=plan.rows_per_explore_step,
        )
        update = {"total_explore_steps": steps.explore, "total_train_steps": steps.train}
        return plan.model_copy(update=update)

    @property
    def expert_buffer(self) -> ResolvedExperienceBuffer | None:
        """The source of the rows of data that batches mix in, if any."""
        name = self.algorithm.sampling.expert_buffer
        return next((buffer for buffer in self.auxiliary_buffers if buffer.name == name), None)

    @property
    def has_dynamic_sync(self) -> bool:
        """True if versions come on request or when ready, and not by the steps' numbers."""
        return self.needs_training and self.config.synchronizer.sync_style != "fixed"

    @property
    def is_asynchronous(self) -> bool:
        """True if rollouts go on while the model they are made with is trained."""
        return self.has_dynamic_sync or self.config.synchronizer.sync_offset > 0

    @property
    def keeps_requests(self) -> bool:
        """True if engines take new weights amid requests."""
        sync = self.config.synchronizer
        keeps = sync.weight_update == "keep" or sync.sync_style == "fully_async"
        return self.needs_training and keeps and self.mode != "bench"

    def requests_version(self, explore_step: int) -> bool:
        """True if `explore_step` begins by requesting newer weights (`explorer_driven`)."""
        sync = self.config.synchronizer
        steps = explore_step - 1 - sync.sync_offset
        asks = self.has_dynamic_sync and sync.sync_style == "explorer_driven"
        return asks and steps > 0 and steps % sync.sync_interval == 0

    def oldest_version(self, train_step: int) -> int:
        """Version of the oldest weights whose rows `train_step` trains on."""
        most = self.algorithm.sampling.max_staleness
        return 0 if most is None else max(train_step - most - 1, 0)

    @property
    def masks_stale_tokens(self) -> bool:
        """True if batches leave out tokens of older weights, not the rows that have some."""
        return self.algorithm.sampling.staleness_unit == "token"

    def required_version(self, explore_step: int, num_unfilled: int = 0) -> int:
        """Version of the weights that explore step `explore_step`, counted from 1, rolls out.

        Earlier ones left `num_unfilled` train steps without rows. An estimate if syncs are dynamic.
        """
        if not self.needs_training:
            return 0
        sync = self.config.synchronizer
        rows_before = (explore_step - 1 - sync.sync_offset) * self.rows_per_explore_step
        train_step = max(0, rows_before // self.num_fresh_rows - num_unfilled)
        return train_step // sync.sync_interval * sync.sync_interval

    def num_explore_steps(self, num_tasks: int) -> int:
        """Explore steps of this stage with a taskset of `num_tasks`."""
        if self.total_explore_steps is not None:
            return self.total_explore_steps
        return self.config.buffer.total_epochs * num_tasks // self.config.buffer.batch_size

    def num_train_steps(self, num_rows: int) -> int:
        """Train steps of this stage; `num_rows` counts tasks, in mode train rows of the file."""
        if self.total_train_steps is not None:
            return self.total_train_steps
        buffer = self.config.buffer
        if self.mode in ("explore", "bench", "serve"):
            return 0
        if not self.needs_rollout:
            return buffer.total_epochs * num_rows // self.train_batch_size
        rows = self.num_explore_steps(num_rows) * self.rows_per_explore_step
        return train_steps_from(rows, self.num_fresh_rows, buffer.short_batch)

    def learning_rate(self, step: int, total_train_steps: int | None = None) -> float:
        """Rate of train step `step`, from 1; the total is used if the plan does not give it."""
        return self.lr_schedule.at(step, self.total_train_steps or total_train_steps)

    def critic_learning_rate(self, step: int, total_train_steps: int | None = None) -> float:
        """The same for the critic."""
        return self.critic_lr_schedule.at(step, self.total_train_steps or total_train_steps)


def keeps_best(stage: StagePlan) -> bool:
    """Returns true if the best evaluated versions of a stage's weights are kept."""
    trains = stage.mode == "both" and stage.needs_training
    return trains and bool(stage.config.trainer.keep_best and stage.headline_taskset)


class ExperimentPlan(PlanModel):
    """The experiment: its directory and its stages."""

    tenant: str
    label: str
    """`project/name` or `project/group/name`."""
    seed: int
    job_dir: AbsolutePath
    """Directory of everything that the run leaves."""
    stages: tuple[StagePlan, ...]

    @property
    def num_rollout_gpus(self) -> int:
        """GPUs that an explorer holds throughout: those of the stage that needs most."""
        sizes = [stage.num_rollout_gpus for stage in self.stages if stage.needs_rollout]
        return max(sizes, default=0)

    @property
    def num_ranks(self) -> int:
        """The most training processes of any stage."""
        stages = [stage for stage in self.stages if stage.needs_training]
        return max((stage.trainer_rank_num for stage in stages), default=0)

    @property
    def num_rank_gpus(self) -> int:
        """GPUs of these processes, unless they only read checkpoints."""
        return max(
            (stage.num_rank_gpus for stage in self.stages if stage.needs_training), default=0
        )

    @property
    def takes_turns(self) -> bool:
        """True if engine and trainer use one GPU by turns in any stage."""
        return any(stage.takes_turns for stage in self.stages)

    @property
    def job_path(self) -> Path:
        """`job_dir` as a path."""
        return Path(self.job_dir)
