"""The parts of a plan: tasksets, buffers, models, other runs and numbers of steps, resolved."""

import math
from decimal import Decimal
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from trinity.algorithm.algorithm_type import RowSchema
from trinity.algorithm.policy_loss import LOSSES_WITH_REFERENCE
from trinity.algorithm.rollout_correction.settings import CorrectionSettings
from trinity.algorithm.sampling import SAMPLE_STRATEGIES, SampleStrategy
from trinity.algorithm.token_advantage import COMPARES_POLICIES, needs_of
from trinity.algorithm.token_selection import TOKEN_SELECTIONS
from trinity.config.schema.algorithm import LossAggMode
from trinity.config.schema.base import Args
from trinity.config.schema.choices import DifficultyConfig
from trinity.config.schema.data import FormatConfig, SelectorType
from trinity.config.schema.experiment import Config
from trinity.config.schema.explorer import AuxiliaryModelConfig, ModelRole
from trinity.config.schema.model import merge_template_kwargs
from trinity.errors import UserError
from trinity.operators.tasks.task_pipeline import ResolvedTaskPipeline

AbsolutePath = Annotated[str, Field(pattern="^/")]
"""A relative path would be resolved by each service in its own working folder."""
TrainStepUnit = Literal["rows", "explore_step"]
"""A train step is a number of rows, or all samples of one explore step."""


class PlanModel(BaseModel):
    """Base of immutable values that are stored as JSON and read by services."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class ResolvedSampling(PlanModel):
    """Sampling of one taskset's responses, with all defaults filled in."""

    temperature: float
    top_p: float
    top_k: int
    """-1 is off."""
    max_tokens: int
    min_tokens: int
    repetition_penalty: float = 1.0
    logprobs: int = 0
    """Number of likeliest tokens reported at each position."""


class ResolvedSelector(PlanModel):
    """The order in which rows are drawn."""

    selector_type: SelectorType
    seed: int
    feature_keys: tuple[str, ...] = ()
    difficulty: DifficultyConfig | None = None
    """For `difficulty_based`."""


class ResolvedRows(PlanModel):
    """Rows that tasks or samples are made of, and the order in which they are drawn."""

    name: str
    storage_type: Literal["file", "sql", "client", "queue"]
    path: str | None
    """Absolute, `owner/name` on the hub, or a database's address; None for what clients
    submit or explorers make."""
    table: str | None = None
    """Table of a database."""
    split: str
    subset_name: str | None
    format: FormatConfig
    selector: ResolvedSelector
    task_pipeline: ResolvedTaskPipeline | None = None
    """Applied to the rows before any of them is drawn."""


CLIENTS = "clients"
"""The workflow of calls that clients have committed."""


class ResolvedTaskset(ResolvedRows):
    """Tasks with their workflow, reward and sampling."""

    is_eval: bool
    repeat_times: int
    """Runs of each task."""
    workflow: str
    """Name or dotted path."""
    workflow_args: Args
    reward: str | None
    """Name or dotted path; None leaves it to the workflow."""
    reward_args: Args
    sampling: ResolvedSampling

    @property
    def is_of_clients(self) -> bool:
        """True for tasks that are calls of clients, which the buffer adds as they are committed."""
        return self.workflow == CLIENTS


class ResolvedReplay(PlanModel):
    """Order of experiences, and their reuse if they are trained more than once."""

    priority_fn: str
    priority_fn_args: Args
    cooldown_steps: int | None
    """Train steps until an experience may be trained again; None is never."""
    cooldown_seconds: float = 0.0
    """Time that must pass as well, from the composition of the batch that it was in."""
    capacity: int
    when_full: Literal["train", "drop"]


class ResolvedExperienceBuffer(ResolvedRows):
    """Source of the trainer's rows."""

    storage_type: Literal["queue", "file", "sql"]
    on_bad_row: Literal["fail", "skip"] = "fail"
    max_read_timeout: float
    """Seconds after which the trainer without a batch gives up."""
    incomplete_after: float | None = None
    """Seconds after which it trains on the rollouts that are ready, however few."""
    replay: ResolvedReplay | None = None
    """None if experiences are trained in order, once."""


class ResolvedAlgorithm(PlanModel):
    """The algorithm's parts; arguments are complete, the user's over the function's own."""

    algorithm_type: str
    row_schema: RowSchema
    """What the trainer's rows are: the explorer's experiences, or data of one of four kinds."""
    repeat_times: int
    sample_strategy: str
    sample_strategy_args: Args
    advantage_fn: str
    advantage_fn_args: Args
    advantage_in_trainer: bool
    """True if the trainer computes it over the whole batch; else the buffer, group by group."""
    policy_loss_fn: str
    policy_loss_fn_args: Args
    loss_reads_reference: bool = False
    """True for a user's loss that wants the reference model's log-probabilities."""
    kl_penalty_fn: str
    kl_penalty_fn_args: Args
    """`kl_coef`, `adaptive`, `target_kl`, `horizon`."""
    kl_loss_fn: str
    kl_loss_fn_args: Args
    """The same."""
    entropy_loss_fn: str
    entropy_loss_fn_args: Args
    """`entropy_coef`, but of `none`."""
    loss_agg_mode: LossAggMode
    needs_critic: bool
    can_balance_batch: bool
    """True if rows may be dealt to ranks and micro-batches in any order."""
    bypass_old_logprobs: bool
    """True if old log-probabilities are the rollout's; else the proximal ones."""
    rollout_correction: CorrectionSettings

    @property
    def sampling(self) -> SampleStrategy:
        """The strategy that chooses the rows of a batch.

        Raises: UserError if there is no such strategy, or if it rejects its arguments.
        """
        if self.sample_strategy not in SAMPLE_STRATEGIES.builtins:
            raise UserError(f"there is no sample strategy `{self.sample_strategy}`")
        return SAMPLE_STRATEGIES.get(self.sample_strategy)(**self.sample_strategy_args)

    @property
    def needs_reference(self) -> bool:
        """True if anything uses the model that the stage started from."""
        uses = (self.kl_loss_fn, self.kl_penalty_fn) != ("none", "none")
        compares = self.policy_loss_fn in LOSSES_WITH_REFERENCE
        measures = self.advantage_in_trainer and "reference" in needs_of(self.advantage_fn)
        return uses or compares or measures or self.loss_reads_reference

    @property
    def needs_proximal(self) -> bool:
        """True if the trainer computes log-probabilities before the step."""
        chooses = self.policy_loss_fn in TOKEN_SELECTIONS.names()
        compares = self.advantage_fn in COMPARES_POLICIES
        corrects = not self.bypass_old_logprobs or self.rollout_correction.is_on
        return chooses or compares or corrects


class ResolvedOperator(PlanModel):
    """An experience operator; arguments are complete, the user's over the function's own."""

    name: str
    """Name or dotted path."""
    args: Args


def fresh_rows(
    replay: ResolvedReplay | None, num_rollout_rows: int, rows_per_explore_step: int
) -> int:
    """Rollouts of one train step that were not trained before, if every run gives its row.

    A batch that fills up with reused rows waits for no more than one explore step.
    """
    if replay is None or replay.cooldown_steps is None or not rows_per_explore_step:
        return num_rollout_rows
    return min(num_rollout_rows, rows_per_explore_step)


class ExternalAccess(PlanModel):
    """Access to a model served elsewhere; the key is only in the explorer's environment."""

    base_url_env: str
    api_key_env: str
    model_name: str


class AuxiliaryModel(PlanModel):
    """A model with frozen weights that workflows can call."""

    name: str
    """The user's name for it, else its position in the list."""
    model_path: str
    """Absolute directory or hub name; for a model served elsewhere, its name there."""
    external: ExternalAccess | None = None
    """Access to it, if it is served elsewhere."""
    max_model_len: int
    max_prompt_tokens: int
    truncates_prompts: bool
    chat_template: str | None
    enable_thinking: bool | None
    chat_template_kwargs: Args = Field(default_factory=dict)
    """Further variables of the template."""
    sampling: ResolvedSampling
    engine: AuxiliaryModelConfig
    role: ModelRole = "generate"

    @property
    def has_gpus(self) -> bool:
        """True if its engines take GPUs where there are any."""
        return self.engine.engine_type == "vllm"

    @property
    def template_kwargs(self) -> Args:
        """All variables that the chat template gets."""
        return merge_template_kwargs(self.chat_template_kwargs, self.enable_thinking)


class StoredBatches(PlanModel):
    """Batches that another stage of the same database has recorded."""

    experiment_id: str
    stage: str
    first_step: int
    last_step: int
    """Train steps, both included; the steps keep their numbers."""


class StoredRollouts(PlanModel):
    """Experiences that another stage has stored in the same database."""

    experiment_id: str = ""
    """Empty for the experiment that the plan belongs to."""
    stage: str
    """Empty until the run that it belongs to is known."""
    run: str = ""
    """Label of another run; empty for a stage of the same one."""

    @property
    def description(self) -> str:
        """Its name in messages."""
        return f"stage {self.stage} of run {self.run}" if self.run else f"stage {self.stage}"


class EvaluatedRun(PlanModel):
    """A stage of the same database whose checkpoints are evaluated."""

    experiment_id: str
    stage: str
    known_versions: tuple[int, ...] = ()
    """Versions evaluated before, which are not evaluated again."""


class ServedRun(PlanModel):
    """A run whose newest weights are served, found in its directory."""

    job_dir: AbsolutePath
    """It need not be there yet."""
    key_file: str = ""
    """Absolute; the explorer generates a key into it if the configuration gives none."""


class TotalSteps(NamedTuple):
    """Steps of a stage; None if the data's size decides."""

    explore: int | None
    train: int | None


def total_steps(
    config: Config, *, rows_per_train_step: int, rows_per_explore_step: int
) -> TotalSteps:
    """Steps that the configuration alone fixes; `rows_per_explore_step` is 0 without an explorer.

    Rows are those of rollouts; other rows of a batch are not counted.
    """
    explore, train = config.buffer.total_steps, config.trainer.total_steps
    if config.mode == "explore":
        return TotalSteps(explore, train=None)
    if config.mode in ("bench", "serve"):
        return TotalSteps(explore=0, train=None)
    if rows_per_explore_step == 0:
        return TotalSteps(explore=0, train=_minimum(explore, train))
    if train is not None:
        explore = _minimum(explore, -(-train * rows_per_train_step // rows_per_explore_step))
    if explore is not None:
        rows = explore * rows_per_explore_step
        made = train_steps_from(rows, rows_per_train_step, config.buffer.short_batch)
        train = _minimum(train, made)
    return TotalSteps(explore, train)


def train_steps_from(
    rows: int, rows_per_train_step: int, short_batch: Literal["train", "fail"]
) -> int:
    """Batches that `rows` make; a short last one counts if short batches are trained."""
    last = rows_per_train_step - 1 if short_batch == "train" else 0
    return (rows + last) // rows_per_train_step


def _minimum(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def required_tasks(config: Config) -> int:
    """Tasks of an explore step that must end: all of them, unless `over_rollout` says less."""
    # Decimal as written: of 10 tasks 0.7 leaves 3; the binary fraction would make it 4.
    share = 1 - Decimal(str(config.explorer.over_rollout.ratio))
    return math.ceil(share * config.buffer.batch_size)
