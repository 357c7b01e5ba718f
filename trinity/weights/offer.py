"""Messages about a transfer before it begins; imports little, as the front ends use it too."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter

Backend = Literal["nccl", "gloo"]
MAX_PART_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferAddress:
    """The rendezvous at which a trainer offers a version of its weights, until a newer one."""

    address: str
    """Address of the rendezvous, host:port."""
    group: str
    """One-time name that prefixes all keys of the offer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTimeouts:
    """Time limits of the parts of a transfer; after that the files are used."""

    turn_seconds: float
    """Until the trainer begins this transfer."""
    join_seconds: float
    """Until all have joined."""
    stall_seconds: float
    """Until a message is sent."""
    whole_seconds: float
    """Until all weights are received."""

    @classmethod
    def within(cls, seconds: float) -> "TransferTimeouts":
        """Returns limits that leave a good part of `seconds` for the files."""
        part = min(MAX_PART_SECONDS, seconds / 16)
        return cls(
            turn_seconds=3 * part, join_seconds=part, stall_seconds=part, whole_seconds=seconds / 4
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Receivers:
    """An engine's processes that hold weights."""

    count: int
    have_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverSlot:
    """An engine's place in a transfer; its processes receive it as a dict."""

    address: str
    group: str
    """Name of this one transfer."""
    backend: Backend
    num_ranks: int
    """Including the sender, which is rank 0."""
    first_rank: int
    """Rank of the engine's first process."""
    limits: TransferTimeouts
    weights_sha256: str
    """Hex root over the tensors, as announced with the version."""
    weights_blake3: str = ""
    """The same by BLAKE3; empty for weights of release 0.1."""


_SLOT: TypeAdapter[ReceiverSlot] = TypeAdapter(ReceiverSlot)


def next_slot(slot: ReceiverSlot, by: int) -> ReceiverSlot:
    """Returns the next slot, for the next engine of the same explorer."""
    return replace(slot, first_rank=slot.first_rank + by)


def slot_from_dict(values: dict[str, Any]) -> ReceiverSlot:
    """Reads the output of `dataclasses.asdict`."""
    return _SLOT.validate_python(values)
