"""How many training processes a stage gets."""

from trinity.config.external import is_external
from trinity.config.root import Config
from trinity.errors import UserError


def resolve_rank_num(config: Config, train_batch_size: int, stage: str) -> int:
    """One rank a GPU that rollout leaves, one without GPUs, or what the user wants and fits."""
    if config.mode in ("explore", "serve") or is_external(config):
        return 0
    wanted = config.trainer.rank_num
    gpus = config.cluster.node_num * config.cluster.gpu_per_node
    ranks = wanted or 1
    if gpus:
        left = gpus - _rollout_gpus(config)
        if left < max(wanted, 1):
            raise UserError(
                f"stage `{stage}`: rollout takes {gpus - left} of {gpus} GPUs (`cluster.node_num` "
                f"x `cluster.gpu_per_node`), which leaves {_too_few(left, wanted)}"
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
    """verl takes one group of all ranks for a size that is no less than their number."""
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


def _rollout_gpus(config: Config) -> int:
    if config.mode == "train":
        return 0
    return config.explorer.num_gpus
