"""Sample strategies by name: the rules by which the buffer composes a batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from trinity.errors import UserError
from trinity.plugins import Registry

StalenessUnit = Literal["row", "token"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleStrategy:
    """Limits on the rows of a batch, and the share of expert data in it."""

    max_staleness: int | None = None
    """Leaves out rows generated with weights more than this many train steps old; None keeps all
    rows. A row that was not generated with this stage's weights has no age; it is kept and counted.
    """
    staleness_unit: StalenessUnit = "row"
    """`row` counts a row by its oldest token. `token` leaves out tokens, and a row with its newest.
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


def staleness_control(
    *, max_staleness: int | None = None, staleness_unit: StalenessUnit = "row"
) -> SampleStrategy:
    """`default` without rows, or tokens, of weights more than `max_staleness` steps older."""
    _check_bound(max_staleness, staleness_unit)
    return SampleStrategy(max_staleness=max_staleness, staleness_unit=staleness_unit)


def mix(
    *,
    expert_data_ratio: float = 0.5,
    sft_dataset_name: str = "sft_dataset",
    max_staleness: int | None = None,
    staleness_unit: StalenessUnit = "row",
) -> SampleStrategy:
    """ceil(expert_data_ratio B) of the B rows are rows of data, the others as with
    `staleness_control`.
    """
    if not 0 < expert_data_ratio < 1:
        raise UserError(f"`expert_data_ratio: {expert_data_ratio}` must lie between 0 and 1")
    _check_bound(max_staleness, staleness_unit)
    return SampleStrategy(
        max_staleness=max_staleness,
        staleness_unit=staleness_unit,
        expert_data_ratio=expert_data_ratio,
        expert_buffer=sft_dataset_name,
    )


def _check_bound(max_staleness: int | None, unit: str) -> None:
    if unit not in get_args(StalenessUnit):
        raise UserError(f"`staleness_unit: {unit}` is neither `row` nor `token`")
    if unit == "token" and max_staleness is None:
        raise UserError("`staleness_unit: token` bounds nothing without `max_staleness`: give both")
    if max_staleness is not None and max_staleness < 0:
        raise UserError(f"`max_staleness: {max_staleness}` must be 0 or more")
