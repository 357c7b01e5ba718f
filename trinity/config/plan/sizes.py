"""Derives batch sizes, ranks, and the tokens or rows of a micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trinity.config.error_collector import ErrorCollector
from trinity.config.plan.auxiliary import with_engine
from trinity.config.plan.data import count_expert_rows
from trinity.config.plan.lengths import SequenceLengths
from trinity.config.plan.model import is_external
from trinity.config.plan.parts import (
    ResolvedAlgorithm,
    TrainStepUnit,
    required_tasks,
)
from trinity.config.plan.stage_plan import StagePlan
from trinity.config.schema.choices import BY_TURNS, EXPLORING
from trinity.config.schema.experiment import Config, MergedStage
from trinity.config.schema.trainer import TrainerConfig
from trinity.errors import UserError
from trinity.plugins import WORKFLOWS, load_plugins, plugin_dirs_from_environment
from trinity.user_code.hubs.place import HUBS

MIN_TOKENS_ON_CPU = 16384
SEVERAL_SAMPLES = frozenset({"agent", "frozen_lake_workflow", "sudoku_workflow", *HUBS})
"""Built-in workflows with `gives_several_samples`, which are not imported to be asked."""


@dataclass(frozen=True, slots=True)
class RolloutGpus:
    """The explorer's GPUs, the same in all stages: services start once per run."""

    num_gpus: int
    stage: str
    """The stage that rolls out on all of them."""


def check_same_cluster(stages: Sequence[MergedStage]) -> None:
    """Raises UserError if the stages have different values of `cluster`."""
    first = stages[0]
    for stage in stages:
        if _machines(stage.config) != _machines(first.config):
            raise UserError(
                f"stage `{stage.name}`: `cluster` is not that of stage `{first.name}`, and GPUs "
                "are shared out once for all stages: write it at the top of the file"
            )


def largest_rollout(stages: Sequence[MergedStage]) -> RolloutGpus:
    """Returns the GPUs of the stage that rolls out on most; all stages set them aside."""
    return max(
        (RolloutGpus(_rollout_gpus(stage.config), stage.name) for stage in stages),
        key=lambda rollout: rollout.num_gpus,
    )


def resolve_rank_num(
    config: Config, train_batch_size: int, stage: str, rollout: RolloutGpus
) -> int:
    """Returns the user's number of ranks if it fits, else one per GPU left by rollout, or 1.

    A bench does not train: without spare GPUs its ranks load checkpoints on the CPU.
    """
    if config.mode in ("explore", "serve") or is_external(config):
        return 0
    wanted = config.trainer.rank_num
    gpus = config.cluster.node_num * config.cluster.gpu_per_node
    if config.mode == "bench":
        return wanted or max(gpus - rollout.num_gpus, 1)
    ranks = wanted or 1
    if gpus:
        left = gpus - rollout.num_gpus
        if left < max(wanted, 1):
            whose = "" if rollout.stage == stage else f" of stage `{rollout.stage}`"
            raise UserError(
                f"rollout{whose} takes {rollout.num_gpus} of {gpus} GPUs "
                "(`cluster.node_num` x `cluster.gpu_per_node`), which leaves "
                f"{_too_few(left, wanted, gpus)}"
            )
        ranks = wanted or left
    _check_groups(config.trainer.fsdp_size, ranks)
    shares = _check_sharing(config.trainer, ranks)
    if train_batch_size < shares:
        fed = f"{ranks} ranks" if shares == ranks else f"{shares} groups of ranks"
        raise UserError(
            f"a train batch of {train_batch_size} rows cannot feed {fed}: "
            "raise `buffer.train_batch_size` or lower `trainer.rank_num`"
        )
    return ranks


def _check_sharing(trainer: TrainerConfig, ranks: int) -> int:
    """Checks the ranks that share sequences; returns the number of shares of a batch."""
    size = trainer.ulysses_sequence_parallel_size
    key = f"`trainer.ulysses_sequence_parallel_size: {size}`"
    if ranks % size:
        raise UserError(
            f"{key} does not divide the {ranks} rank{'s' if ranks > 1 else ''} that train: give a "
            f"divisor of {ranks}, or change `trainer.rank_num`"
        )
    if size > 1 and not trainer.use_remove_padding:
        raise UserError(
            f"{key} shares rows that have no padding: leave out `trainer.use_remove_padding: false`"
        )
    return ranks // size


def _check_groups(fsdp_size: int, ranks: int) -> None:
    """Checks the size of groups; verl makes one group of all ranks if it is no less than them."""
    if fsdp_size == 0 or (0 < fsdp_size < ranks and ranks % fsdp_size):
        raise UserError(
            f"`trainer.fsdp_size: {fsdp_size}` does not divide the {ranks} "
            f"rank{'s' if ranks > 1 else ''} into groups: give a divisor of {ranks}, or -1 for all"
        )


def _too_few(left: int, wanted: int, gpus: int) -> str:
    if gpus == 1 and wanted <= 1:
        return (
            "none to train on: give `mode: colocate`, with which engine and trainer take turns on "
            "it, more GPUs, or 0 to run on the processor"
        )
    if not wanted:
        return (
            "none to train on: lower `explorer.rollout_model.engine_num` or "
            "`tensor_parallel_size`, give more GPUs, or 0 to run on the processor"
        )
    return f"{max(left, 0)} for `trainer.rank_num: {wanted}`: give more GPUs or fewer ranks"


def _machines(config: Config) -> tuple[int, int]:
    return config.cluster.node_num, config.cluster.gpu_per_node


def _rollout_gpus(config: Config) -> int:
    """The plan of the stage counts the same, see `StagePlan.num_rollout_gpus`."""
    if config.mode in ("train", BY_TURNS):  # its one GPU is the trainer's too
        return 0
    explorer = config.explorer
    own = 0 if is_external(config) else explorer.rollout_model.num_gpus
    return own + sum(with_engine(model).num_gpus for model in explorer.auxiliary_models)


class BatchSizes(NamedTuple):
    """Sizes of each train step, and of the explore steps before it."""

    train_batch: int
    expert_rows: int
    """How many of them come from data."""
    explore_rows: int
    """0 without an explorer."""
    ranks: int
    max_token_len: int


def resolve_sizes(
    config: Config,
    algorithm: ResolvedAlgorithm,
    lengths: SequenceLengths | None,
    stage: str,
    rollout: RolloutGpus,
) -> BatchSizes:
    """Derives the sizes; raises UserError with a line for each impossible one."""
    rows_of_tasks = required_tasks(config) * algorithm.repeat_times
    explore_rows = rows_of_tasks if config.mode in EXPLORING else 0
    has_rollouts = algorithm.row_schema == "experience"
    batch = _train_batch_size(config, rows_of_tasks if has_rollouts else 0)
    errors = ErrorCollector()
    expert_rows = errors.attempt(lambda: count_expert_rows(algorithm, batch))
    ranks = errors.attempt(lambda: resolve_rank_num(config, batch, stage, rollout))
    errors.raise_all()
    tokens = config.trainer.max_token_len_per_gpu
    if tokens is None:
        tokens = _default_token_len(config, lengths) if lengths else 0
    return BatchSizes(batch, expert_rows or 0, explore_rows, ranks or 1, tokens)


def _train_batch_size(config: Config, rows_per_explore_step: int) -> int:
    configured = config.buffer.train_batch_size
    if configured == 0 and not rows_per_explore_step and config.mode == "train":
        raise UserError(
            "`buffer.train_batch_size` is missing: `mode: train` has no "
            "explore step to derive it from, give the rows of one train step"
        )
    return configured or max(rows_per_explore_step, 1)


def resolve_train_step(plan: StagePlan) -> TrainStepUnit:
    """Returns the unit of a train step: `rows` if the stage does not train on its own rollouts.

    Raises: UserError if `explore_step` is configured together with rows from other sources.
    """
    chosen = plan.config.buffer.train_step
    if plan.mode != "both" or chosen == "rows":
        return "rows"
    obstacle = ""
    if plan.replay is not None:
        obstacle = "`replay_buffer` orders and repeats those of many"
    elif plan.num_expert_rows:
        obstacle = "`sample_strategy: mix` adds rows of data"
    elif plan.config.synchronizer.sync_style == "fully_async":
        obstacle = "`sync_style: fully_async` has no common steps"
    if chosen == "explore_step":
        if obstacle:
            raise UserError(
                "`buffer.train_step: explore_step` trains the samples of one explore step, each "
                f"once, and {obstacle}: write `rows`, or leave that out"
            )
        return "explore_step"
    gives_several = any(gives_several_samples(taskset.workflow) for taskset in plan.tasksets)
    return "explore_step" if gives_several and not obstacle else "rows"


def gives_several_samples(workflow: str) -> bool:
    """Returns whether a workflow declares that its runs give any number of samples.

    False if it cannot be loaded: the check of its name reports the error.
    """
    if workflow in WORKFLOWS.builtins:
        return workflow in SEVERAL_SAMPLES
    try:
        load_plugins(plugin_dirs_from_environment())
        part: object = WORKFLOWS.get(workflow)
    except UserError:
        return False
    # Until `check_workflow` has seen it, a part may be anything.
    return getattr(part, "gives_several_samples", False) is True


def _default_token_len(config: Config, lengths: SequenceLengths) -> int:
    """Two of the longest sequences, for which a GPU's memory is planned, or its part of them.

    Without a GPU, small micro-batches are dominated by their fixed cost.
    """
    two = -(-2 * lengths.model // config.trainer.ulysses_sequence_parallel_size)
    return two if config.cluster.gpu_per_node else max(two, MIN_TOKENS_ON_CPU)


def row_shortage_error(stage: StagePlan, num_rows: int) -> str:
    """The error and its fix if `num_rows` make no step; empty if they make one."""
    kind, num_steps = "train", stage.num_train_steps(num_rows)
    if stage.mode == "explore":
        kind, num_steps = "explore", stage.num_explore_steps(num_rows)
    if num_steps > 0 or stage.mode in ("bench", "serve"):
        return ""
    size, key = stage.train_batch_size, "train_batch_size"
    if stage.needs_rollout:
        size, key = stage.config.buffer.batch_size, "batch_size"
    return (
        f"{num_rows} rows make no {kind} step with `buffer.{key}: {size}` and "
        f"`buffer.total_epochs: {stage.config.buffer.total_epochs}`: "
        "give more rows or epochs, a smaller batch, or `buffer.total_steps`"
    )


def plans_shared_prompts(plan: StagePlan) -> bool:
    """Returns True if rows of one prompt in a micro-batch compute it once.

    Ranks that share sequences cut between any two tokens.
    """
    wanted = plan.config.trainer.use_prefix_grouper
    if wanted is None:
        wanted = not plan.config.cluster.gpu_per_node
    return wanted and plan.sequence_parallel_size == 1


def policy_rows(plan: StagePlan) -> int | None:
    """Returns the rows of the policy's micro-batches; None where they are cut by tokens."""
    return _micro_batch_rows(plan, plan.config.trainer.ppo_micro_batch_size_per_gpu)


def inference_rows(plan: StagePlan) -> int | None:
    """Returns the same for passes of actor and reference that only compute outputs."""
    trainer = plan.config.trainer
    own = trainer.log_prob_micro_batch_size_per_gpu
    return _micro_batch_rows(plan, own or trainer.ppo_micro_batch_size_per_gpu)


def critic_rows(plan: StagePlan) -> int | None:
    """Returns the same for all passes of the critic."""
    trainer = plan.config.trainer
    own = trainer.critic.ppo_micro_batch_size_per_gpu
    return _micro_batch_rows(plan, own or trainer.ppo_micro_batch_size_per_gpu)


def _micro_batch_rows(plan: StagePlan, configured: int | None) -> int | None:
    return None if plan.config.trainer.use_dynamic_bsz else configured or 1
