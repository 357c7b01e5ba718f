"""What is said of a transfer before it begins; light, as the front ends read it too."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

Backend = Literal["nccl", "gloo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Where a trainer gives one version of its weights, until it offers a newer one."""

    address: str
    """Of the rendezvous, host:port."""
    group: str
    """One-time name that everything said there goes under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long each part of a transfer may take before files are used instead."""

    turn_seconds: float
    """Until the trainer has time for this one."""
    join_seconds: float
    """Until all have met."""
    stall_seconds: float
    """Until a message is through."""
    whole_seconds: float
    """Until all of it is there."""

    @classmethod
    def within(cls, seconds: float) -> "Limits":
        """Limits that leave a good part of `seconds` for the files."""
        part = min(MOST_SECONDS, seconds / 16)
        return cls(
            turn_seconds=3 * part, join_seconds=part, stall_seconds=part, whole_seconds=seconds / 4
        )


MOST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivers:
    """An engine's processes that hold weights."""

    count: int
    have_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What an engine's processes need to take part; as a dict it goes to them."""

    address: str
    group: str
    """Name of this one transfer."""
    backend: Backend
    num_ranks: int
    """With the sender, which is rank 0."""
    first_rank: int
    """That of the engine's first process."""
    limits: Limits
    weights_sha256: str
    """Hex hash that was announced with the version."""


def moved(seat: Seat, by: int) -> Seat:
    """The place beside it, for the next engine of the same explorer."""
    return replace(seat, first_rank=seat.first_rank + by)


def read_seat(values: dict[str, Any]) -> Seat:
    """What `dataclasses.asdict` made of it."""
    return _SEAT.validate_python(values)


_SEAT: TypeAdapter[Seat] = TypeAdapter(Seat)
