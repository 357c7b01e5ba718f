"""Checks that the rows of a batch have a source, and that the loss trains on them."""

from collections.abc import Iterator

from trinity.algorithm.policy_loss import POLICY_LOSSES
from trinity.config.near import did_you_mean
from trinity.config.plan import StagePlan

MIXED_LOSSES = frozenset({"mix", "mix_chord"})


def sampling_mistakes(plan: StagePlan) -> Iterator[str]:
    """Yields a sentence for each error."""
    strategy = plan.algorithm.sampling
    yield from _loss_suits(plan, has_experts=strategy.expert_buffer is not None)
    if strategy.expert_buffer is not None:
        yield from _experts_are_there(plan, strategy.expert_buffer)
    if strategy.max_staleness is not None:
        yield from _fresh_rows_can_be(plan, strategy.max_staleness)


def _loss_suits(plan: StagePlan, *, has_experts: bool) -> Iterator[str]:
    loss, name = plan.algorithm.policy_loss_fn, plan.algorithm.sample_strategy
    is_mixed = loss in MIXED_LOSSES
    if is_mixed and not has_experts:
        yield (
            f"`algorithm.policy_loss_fn: {loss}` trains on rollouts and expert rows, and "
            f"`sample_strategy: {name}` brings no expert rows: give `sample_strategy: mix`"
        )
    if has_experts and not is_mixed and loss in POLICY_LOSSES.builtins:
        yield (
            f"`algorithm.sample_strategy: {name}` brings expert rows, on which `{loss}` does not "
            "train: give `policy_loss_fn: mix` or `mix_chord`"
        )


def _experts_are_there(plan: StagePlan, expert_buffer: str) -> Iterator[str]:
    names = [buffer.name for buffer in plan.auxiliary_buffers]
    if expert_buffer not in names:
        advice = did_you_mean(expert_buffer, names) if names else ": give it, with its `path`"
        yield (
            f"`algorithm.sample_strategy: {plan.algorithm.sample_strategy}` takes expert rows from "
            f"`buffer.trainer_input.auxiliary_buffers.{expert_buffer}`, which is missing{advice}"
        )


def _fresh_rows_can_be(plan: StagePlan, max_staleness: int) -> Iterator[str]:
    """Checks the bound: between two versions the newest weights get older with each train step."""
    interval = plan.config.synchronizer.sync_interval
    if max_staleness < interval - 1:
        yield (
            f"`algorithm.sample_strategy_args.max_staleness: {max_staleness}` leaves out every row "
            f"of some steps, as `synchronizer.sync_interval: {interval}` lets even the newest "
            f"weights grow {interval - 1} steps old: give {interval - 1} or more"
        )
