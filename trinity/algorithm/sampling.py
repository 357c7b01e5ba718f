"""Sample strategies by name: the rules by which the buffer composes a batch."""

from collections.abc import Callable
from dataclasses import dataclass

from trinity.errors import UserError
from trinity.plugins import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStrategy:
    """Limits on the rows of a batch, and the share of expert data in it."""

    max_staleness: int | None = None
    """Leaves out rows generated with weights more than this many train steps old; None keeps all
    rows. A row that was not generated with this stage's weights has no age; it is kept and counted.
    """
    expert_data_ratio: float = 0.0
    """Share of the batch, rounded up, that comes from the buffer below."""
    expert_buffer: str | None = None
    """Name of one of `buffer.trainer_input.auxiliary_buffers`."""


SAMPLE_STRATEGIES: Registry[Callable[..., SampleStrategy]] = Registry(
    "sample strategy",
    {
        "default": f"{__name__}.default",
        "warmup": f"{__name__}.default",
        "staleness_control": f"{__name__}.staleness_control",
        "mix": f"{__name__}.mix",
    },
    adapter="trinity.rft.algorithm.sample_strategy.adapt_strategy",
)
"""`warmup` is an old name of `default`."""


def default() -> SampleStrategy:
    """All rows that the explorer makes, in its order."""
    return SampleStrategy()


def staleness_control(*, max_staleness: int | None = None) -> SampleStrategy:
    """`default` without rows whose weights are more than `max_staleness` train steps older."""
    _check_bound(max_staleness)
    return SampleStrategy(max_staleness=max_staleness)


def mix(
    *,
    expert_data_ratio: float = 0.5,
    sft_dataset_name: str = "sft_dataset",
    max_staleness: int | None = None,
) -> SampleStrategy:
    """ceil(expert_data_ratio B) of the B rows are rows of data, the others as with
    `staleness_control`.
    """
    if not 0 < expert_data_ratio < 1:
        raise UserError(f"`expert_data_ratio: {expert_data_ratio}` must lie between 0 and 1")
    _check_bound(max_staleness)
    return SampleStrategy(
        max_staleness=max_staleness,
        expert_data_ratio=expert_data_ratio,
        expert_buffer=sft_dataset_name,
    )


def _check_bound(max_staleness: int | None) -> None:
    if max_staleness is not None and max_staleness < 0:
        raise UserError(f"`max_staleness: {max_staleness}` must be 0 or more")
