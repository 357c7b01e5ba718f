"""Number of training processes of a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

from trinity.config.external import is_external
from trinity.config.merging import Stage
from trinity.config.root import Config
from trinity.errors import UserError


@dataclass(frozen=True, slots=True)
class Rollout:
    """The explorer's GPUs, the same in all stages: services start once per run."""

    num_gpus: int
    stage: str
    """The stage that rolls out on all of them."""


def largest_rollout(stages: Sequence[Stage]) -> Rollout:
    """Returns the GPUs of the stage that rolls out on most; all stages set them aside.

    Raises: UserError if a stage has a `cluster` of its own.
    """
    first = stages[0]
    for stage in stages:
        if _machines(stage.config) != _machines(first.config):
            raise UserError(
                f"stage `{stage.name}`: `cluster` is not that of stage `{first.name}`, and GPUs "
                "are shared out once for all stages: write it at the top of the file"
            )
    return max(
        (Rollout(_rollout_gpus(stage.config), stage.name) for stage in stages),
        key=lambda rollout: rollout.num_gpus,
    )


def resolve_rank_num(config: Config, train_batch_size: int, stage: str, rollout: Rollout) -> int:
    """One rank per GPU that rollout leaves, one without GPUs, or the user's number if it fits."""
    if config.mode in ("explore", "serve") or is_external(config):
        return 0
    wanted = config.trainer.rank_num
    gpus = config.cluster.node_num * config.cluster.gpu_per_node
    ranks = wanted or 1
    if gpus:
        left = gpus - rollout.num_gpus
        if left < max(wanted, 1):
            whose = "" if rollout.stage == stage else f" of stage `{rollout.stage}`"
            raise UserError(
                f"stage `{stage}`: rollout{whose} takes {rollout.num_gpus} of {gpus} GPUs "
                "(`cluster.node_num` x `cluster.gpu_per_node`), which leaves "
                f"{_too_few(left, wanted)}"
            )
        ranks = wanted or left
    if train_batch_size < ranks:
        raise UserError(
            f"stage `{stage}`: a train batch of {train_batch_size} rows cannot feed {ranks} ranks: "
            "raise `buffer.train_batch_size` or lower `trainer.rank_num`"
        )
    _check_groups(config.trainer.fsdp_size, ranks, stage)
    return ranks


def _check_groups(fsdp_size: int, ranks: int, stage: str) -> None:
    """Checks the size of groups; verl makes one group of all ranks if it is no less than them."""
    if fsdp_size == 0 or (0 < fsdp_size < ranks and ranks % fsdp_size):
        raise UserError(
            f"stage `{stage}`: `trainer.fsdp_size: {fsdp_size}` does not divide the {ranks} "
            f"rank{'s' if ranks > 1 else ''} into groups: give a divisor of {ranks}, or -1 for all"
        )


def _too_few(left: int, wanted: int) -> str:
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
    if config.mode == "train":
        return 0
    explorer = config.explorer
    own = 0 if is_external(config) else explorer.rollout_model.num_gpus
    return own + sum(model.num_gpus for model in explorer.auxiliary_models)
