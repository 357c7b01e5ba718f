"""What follows from a configuration: the object that services act on, as JSON on the wire."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from trinity.algorithm.algorithm_type import RowSchema
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.sample_strategy import SAMPLE_STRATEGIES, SampleStrategy
from trinity.algorithm.token_choice import TOKEN_CHOICES
from trinity.config.algorithm import EntropyLossFn, KlFn, LossAggMode
from trinity.config.data_format import FormatConfig, SelectorType
from trinity.config.difficulty import DifficultyConfig
from trinity.config.learning_rate import LearningRateSchedule
from trinity.config.lora import LoRAConfig
from trinity.config.mode import Mode
from trinity.config.over_rollout import needed_tasks
from trinity.config.rollout_model import AuxiliaryModelConfig
from trinity.config.root import Config
from trinity.config.section import Args
from trinity.config.steps import train_steps_from
from trinity.errors import UserError
from trinity.task_operators.task_pipeline import ResolvedTaskPipeline

Role = Literal["trainer", "explorer"]


class _Derived(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Sampling(_Derived):
    """How one taskset's responses are sampled, all defaults filled in."""

    temperature: float
    top_p: float
    top_k: int
    """-1 is off."""
    max_tokens: int
    min_tokens: int
    repetition_penalty: float = 1.0
    logprobs: int = 0
    """Likeliest tokens told at each position."""


class Selector(_Derived):
    """The order in which rows are drawn."""

    selector_type: SelectorType
    seed: int
    feature_keys: tuple[str, ...] = ()
    difficulty: DifficultyConfig | None = None
    """For `difficulty_based`."""


class ResolvedTaskset(_Derived):
    """Tasks with their workflow, reward and sampling."""

    name: str
    storage_type: Literal["file", "sql", "client", "queue"]
    path: str | None
    """Absolute, `owner/name` on the hub, or a database's address; None for what clients submit."""
    table: str | None = None
    """Of a database."""
    split: str
    subset_name: str | None
    is_eval: bool
    repeat_times: int
    """Runs of each task."""
    workflow: str
    """Name or dotted path."""
    workflow_args: Args
    reward: str | None
    """Name or dotted path; None leaves it to the workflow."""
    reward_args: Args
    format: FormatConfig
    sampling: Sampling
    selector: Selector
    task_pipeline: ResolvedTaskPipeline | None = None
    """What is done to its rows before any of them is drawn."""


class ResolvedReplay(_Derived):
    """How experiences are ordered, and whether they are trained more than once."""

    priority_fn: str
    priority_fn_args: Args
    cooldown_steps: int | None
    """Train steps until an experience may be trained again; None is never."""
    capacity: int
    when_full: Literal["train", "drop"]


class ResolvedExperienceBuffer(_Derived):
    """Where the trainer's rows come from."""

    name: str
    storage_type: Literal["queue", "file", "sql"]
    path: str | None
    """Absolute, or a database's address; None for what the explorer makes."""
    table: str | None = None
    """Of a database."""
    split: str
    subset_name: str | None
    format: FormatConfig
    selector: Selector
    max_read_timeout: float
    replay: ResolvedReplay | None = None
    """None where experiences are trained in order, once."""
    task_pipeline: ResolvedTaskPipeline | None = None
    """What is done to rows of data before any of them is trained."""


class ResolvedAlgorithm(_Derived):
    """The algorithm's parts; arguments are complete, the user's over the function's own."""

    algorithm_type: str
    row_schema: RowSchema
    """What the trainer's rows are: the explorer's experiences, or data of one of three kinds."""
    repeat_times: int
    sample_strategy: str
    sample_strategy_args: Args
    advantage_fn: str
    advantage_fn_args: Args
    advantage_in_trainer: bool
    """Whether the trainer computes it over the whole batch; else the buffer, group by group."""
    policy_loss_fn: str
    policy_loss_fn_args: Args
    kl_penalty_fn: KlFn
    kl_penalty_fn_args: Args
    """`kl_coef`, `adaptive`, `target_kl`, `horizon`."""
    kl_loss_fn: KlFn
    kl_loss_fn_args: Args
    """The same."""
    entropy_loss_fn: EntropyLossFn
    entropy_loss_fn_args: Args
    """`entropy_coef`, but of `none`."""
    loss_agg_mode: LossAggMode
    needs_critic: bool
    can_balance_batch: bool
    """Whether rows may be dealt to ranks and micro-batches in any order."""
    bypass_old_logprobs: bool
    """Whether old log-probabilities are the rollout's; else the proximal ones."""
    rollout_correction: CorrectionSettings

    @property
    def sampling(self) -> SampleStrategy:
        """Which rows a batch may hold.

        Raises: UserError when there is no such strategy, or it refuses its arguments.
        """
        if self.sample_strategy not in SAMPLE_STRATEGIES.builtins:
            raise UserError(f"there is no sample strategy `{self.sample_strategy}`")
        return SAMPLE_STRATEGIES.get(self.sample_strategy)(**self.sample_strategy_args)

    @property
    def needs_reference(self) -> bool:
        """Whether anything looks at the model that the stage started from."""
        uses = (self.kl_loss_fn, self.kl_penalty_fn) != ("none", "none")
        return uses or self.policy_loss_fn == "dpo"

    @property
    def needs_proximal(self) -> bool:
        """Whether the trainer computes log-probabilities of its own before the step."""
        chooses = self.policy_loss_fn in TOKEN_CHOICES.names()
        return chooses or not self.bypass_old_logprobs or self.rollout_correction.is_on


class ResolvedOperator(_Derived):
    """An experience operator; arguments are complete, the user's over the function's own."""

    name: str
    """Name or dotted path."""
    args: Args


def fresh_rows(
    replay: ResolvedReplay | None, num_rollout_rows: int, rows_per_explore_step: int
) -> int:
    """Rollouts of one train step that were not trained before, if every run gives its row.

    A batch that fills up with others waits for no more than one explore step.
    """
    if replay is None or replay.cooldown_steps is None or not rows_per_explore_step:
        return num_rollout_rows
    return min(num_rollout_rows, rows_per_explore_step)


class ExternalAccess(_Derived):
    """Where a model is that others serve; the key is in the explorer's environment alone."""

    base_url_env: str
    api_key_env: str
    model_name: str


class AuxiliaryModel(_Derived):
    """A model beside the policy, whose weights stay as they are."""

    name: str
    """As the user calls it, else where it stands."""
    model_path: str
    """Absolute directory or hub name; of a model that others serve its name there."""
    external: ExternalAccess | None = None
    """Where it is, if others serve it."""
    max_model_len: int
    max_prompt_tokens: int
    truncates_prompts: bool
    chat_template: str | None
    enable_thinking: bool | None
    sampling: Sampling
    engine: AuxiliaryModelConfig


class StoredBatches(_Derived):
    """Batches that another stage of the same database has recorded."""

    experiment_id: str
    stage: str
    first_step: int
    last_step: int
    """Train steps, both included; the steps keep their numbers."""


class StoredRollouts(_Derived):
    """Experiences that another stage has stored in the same database."""

    experiment_id: str = ""
    """Empty for the experiment that the plan belongs to."""
    stage: str
    """Empty until the run is known that it belongs to."""
    run: str = ""
    """Label of another run; empty for a stage of the same one."""

    @property
    def words(self) -> str:
        """As sentences call it."""
        return f"stage {self.stage} of run {self.run}" if self.run else f"stage {self.stage}"


class BenchedRun(_Derived):
    """A stage of the same database whose checkpoints are evaluated."""

    experiment_id: str
    stage: str
    known_versions: tuple[int, ...] = ()
    """Evaluated before, and not again."""


class ServedRun(_Derived):
    """A run whose newest weights are served, found in its directory."""

    job_dir: str
    """Absolute; it need not be there yet."""


class StagePlan(_Derived):
    """One stage: its merged configuration and what follows from it.

    stage = ExperimentPlan.model_validate_json(text).stages[0]
    stage.required_version(explore_step=5)
    stage.learning_rate(step=1, total_train_steps=stage.num_train_steps(num_rows=2000))
    """

    index: int
    name: str
    mode: Mode
    roles: tuple[Role, ...]
    """The services whose end ends the stage."""
    config: Config
    """The merged configuration of this stage, without `stages`."""
    algorithm: ResolvedAlgorithm
    operators: tuple[ResolvedOperator, ...] = ()
    """What shapes the explorer's experiences, in order, before the advantage function."""
    model_path: str
    """Absolute directory or hub name; a later stage starts from the weights of the one before."""
    start_checkpoint: str | None = None
    """Absolute folder of a former run's checkpoint that the stage begins with, if any."""
    critic_model_path: str | None
    """The same for the model that the critic starts from; None without a critic."""
    adapter_path: str | None = None
    """Absolute directory of the adapter that the stage begins with; None for one at zero."""
    chat_template: str | None
    """Text of the chat template, if not the tokenizer's."""
    max_model_len: int
    max_prompt_tokens: int
    max_response_tokens: int
    min_response_tokens: int
    train_batch_size: int
    """Experiences (mode train: rows) of one train step."""
    num_expert_rows: int = 0
    """How many of them are rows of data that stand beside the explorer's."""
    rows_per_explore_step: int
    """Experiences that one explore step makes at least, if none is filtered; 0 without explorer."""
    total_explore_steps: int | None
    """None if the taskset's size decides: see `num_explore_steps`."""
    total_train_steps: int | None
    """None if the data's size decides: see `num_train_steps`."""
    trainer_rank_num: int
    max_token_len_per_gpu: int
    """Tokens of one micro-batch."""
    tasksets: tuple[ResolvedTaskset, ...] = ()
    """What the explorer trains on; none in mode train."""
    eval_tasksets: tuple[ResolvedTaskset, ...]
    eval_interval: int
    """Explore steps between evaluations, each of which has a version of the weights."""
    experience_buffer: ResolvedExperienceBuffer
    auxiliary_buffers: tuple[ResolvedExperienceBuffer, ...]
    """Rows of data that are mixed in."""
    auxiliary_models: tuple[AuxiliaryModel, ...] = ()
    """Models that workflows may ask beside the policy."""
    external_model: ExternalAccess | None = None
    """What is evaluated or explored with in place of the policy, if others serve it."""
    lr_schedule: LearningRateSchedule
    critic_lr_schedule: LearningRateSchedule
    """Means nothing without a critic."""
    stored_batches: StoredBatches | None = None
    """What is trained on again, in place of anything new."""
    stored_rollouts: StoredRollouts | None = None
    """What is trained on, where an earlier stage or run explored for it."""
    benched: BenchedRun | None = None
    """Whose checkpoints are evaluated, in mode bench."""
    served: ServedRun | None = None
    """Whose weights are served, in mode serve; None serves the model alone."""

    @model_validator(mode="before")
    @classmethod
    def _of_one_taskset(cls, values: Any) -> Any:
        """Plans that were stored when a stage had one taskset at most."""
        if isinstance(values, Mapping) and "taskset" in values:
            rest = {name: value for name, value in values.items() if name != "taskset"}
            single = values["taskset"]
            return {**rest, "tasksets": [single] if single else []}
        return values

    @property
    def taskset(self) -> ResolvedTaskset | None:
        """The first of those that the explorer trains on."""
        return self.tasksets[0] if self.tasksets else None

    @property
    def lora(self) -> LoRAConfig | None:
        """The adapter that is trained; None where all weights are."""
        return self.config.model.lora

    @property
    def algorithm_type(self) -> str:
        """Name of the algorithm."""
        return self.algorithm.algorithm_type

    @property
    def needs_reference(self) -> bool:
        """Whether anything looks at the model the stage started from."""
        return self.algorithm.needs_reference

    @property
    def needs_critic(self) -> bool:
        """Whether a value model is trained beside the policy."""
        return self.algorithm.needs_critic

    @property
    def needs_rollout(self) -> bool:
        """Whether the stage has an explorer."""
        return "explorer" in self.roles

    @property
    def has_rollouts(self) -> bool:
        """Whether its rows are rollouts: an explorer's, or stored ones of a stage that had one."""
        if self.needs_rollout or self.stored_rollouts is not None:
            return True
        return self.stored_batches is not None and self.taskset is not None

    @property
    def needs_training(self) -> bool:
        """Whether a trainer gives out the weights; else there are those the stage starts with."""
        return "trainer" in self.roles

    @property
    def num_rollout_gpus(self) -> int:
        """GPUs of one explorer's engines of all models, where there are any."""
        explorer = self.config.explorer
        own = 0 if self.external_model is not None else explorer.rollout_model.num_gpus
        return own + sum(model.engine.num_gpus for model in self.auxiliary_models)

    @property
    def sends_weights(self) -> bool:
        """Whether weights go from the trainer's memory to engines, and not through files alone.

        Those of an adapter are merged on their way to the files.
        """
        has_both = self.mode == "both" and self.needs_training and self.needs_rollout
        return has_both and self.lora is None and self.config.synchronizer.sync_method == "nccl"

    @property
    def num_rollout_rows(self) -> int:
        """Rows of one train step that rollouts give."""
        return self.train_batch_size - self.num_expert_rows

    @property
    def num_spare_tasks(self) -> int:
        """Tasks of an explore step that may be left behind."""
        return self.config.buffer.batch_size - needed_tasks(self.config)

    @property
    def replay(self) -> ResolvedReplay | None:
        """How experiences are ordered and trained again; None where they are in order, once."""
        return self.experience_buffer.replay

    @property
    def num_fresh_rows(self) -> int:
        """Rollouts that are due for one train step; what else a batch has was trained before."""
        return fresh_rows(self.replay, self.num_rollout_rows, self.rows_per_explore_step)

    @property
    def expert_buffer(self) -> ResolvedExperienceBuffer | None:
        """Where the rows of data beside the explorer's come from, if a batch has such."""
        name = self.algorithm.sampling.expert_buffer
        return next((one for one in self.auxiliary_buffers if one.name == name), None)

    @property
    def is_driven(self) -> bool:
        """Whether versions come when somebody asks or has one, and not by the steps' numbers."""
        return self.needs_training and self.config.synchronizer.sync_style != "fixed"

    @property
    def runs_ahead(self) -> bool:
        """Whether rollouts go on while what they are made with is trained."""
        return self.is_driven or self.config.synchronizer.sync_offset > 0

    def asks_for_version(self, explore_step: int) -> bool:
        """Whether `explore_step` begins with newer weights, where explorers ask for them."""
        sync = self.config.synchronizer
        steps = explore_step - 1 - sync.sync_offset
        asks = self.is_driven and sync.sync_style == "explorer_driven"
        return asks and steps > 0 and steps % sync.sync_interval == 0

    def oldest_version(self, train_step: int) -> int:
        """Oldest weights whose rows `train_step` trains on."""
        most = self.algorithm.sampling.max_staleness
        return 0 if most is None else max(train_step - most - 1, 0)

    def required_version(self, explore_step: int) -> int:
        """Version of the weights that explore step `explore_step`, from 1 on, rolls out.

        Where versions are not tied to steps, the one that `fixed` would take: an estimate.
        """
        if not self.needs_training:
            return 0
        sync = self.config.synchronizer
        rows_before = (explore_step - 1 - sync.sync_offset) * self.rows_per_explore_step
        train_step = max(0, rows_before // self.num_fresh_rows)
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
        """Rate of train step `step`, from 1 on; the total counts where the plan has none."""
        return self.lr_schedule.at(step, self.total_train_steps or total_train_steps)

    def critic_learning_rate(self, step: int, total_train_steps: int | None = None) -> float:
        """The same for the critic."""
        return self.critic_lr_schedule.at(step, self.total_train_steps or total_train_steps)


class ExperimentPlan(_Derived):
    """The experiment: where it lives and its stages."""

    tenant: str
    label: str
    """`project/name` or `project/group/name`."""
    seed: int
    job_dir: str
    """Absolute directory of everything the run leaves."""
    stages: tuple[StagePlan, ...]

    @property
    def job_path(self) -> Path:
        """`job_dir` as a path."""
        return Path(self.job_dir)
