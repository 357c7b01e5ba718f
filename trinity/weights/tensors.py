"""Packs tensors into messages: in the order of their names, several per message."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from pydantic import Field, TypeAdapter, ValidationError

from trinity.errors import TransferFailed
from trinity.weights.identity import HASHES, HashName, TensorHash, WeightsRoots, roots_of

MESSAGE_BYTES = 64 << 20
"""A larger tensor gets a separate message."""
ALIGNMENT = 16
DType = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's metadata."""

    name: str
    dtype: DType
    shape: tuple[Annotated[int, Field(ge=0)], ...]

    @property
    def num_bytes(self) -> int:
        """Size of its content."""
        size: int = self.empty("meta").nbytes
        return size

    def empty(self, device: str = "cpu") -> torch.Tensor:
        """Returns an uninitialized tensor of this kind."""
        return torch.empty(self.shape, dtype=getattr(torch, self.dtype), device=device)


Message = tuple[TensorInfo, ...]
_MESSAGES: TypeAdapter[tuple[Message, ...]] = TypeAdapter(tuple[Message, ...])


def dump_layout(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """Lists all messages to come, without their content."""
    return _MESSAGES.dump_json(tuple(_messages(tensors)))


def parse_layout(text: bytes) -> tuple[Message, ...]:
    """Reads the output of `dump_layout`.

    Raises: TransferFailed.
    """
    try:
        return _MESSAGES.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise TransferFailed(f"the trainer's list of tensors: {first['msg']}") from error


def _messages(tensors: Mapping[str, torch.Tensor]) -> Iterator[Message]:
    message: list[TensorInfo] = []
    num_bytes = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        dtype = str(tensor.dtype).removeprefix("torch.")
        if message and num_bytes + tensor.nbytes > MESSAGE_BYTES:
            yield tuple(message)
            message, num_bytes = [], 0
        message.append(TensorInfo(name, dtype, tuple(tensor.shape)))  # type: ignore[arg-type]
        num_bytes += tensor.nbytes
    if message:
        yield tuple(message)


def allocate_buffer(message: Message, device: str) -> torch.Tensor:
    """Allocates a buffer for a message's bytes."""
    return torch.empty(_offsets(message)[1], dtype=torch.uint8, device=device)


def pack(message: Message, tensors: Mapping[str, torch.Tensor], device: str) -> torch.Tensor:
    """Packs a message's tensors into a buffer."""
    buffer = allocate_buffer(message, device)
    for info, view in unpack_views(message, buffer):
        view.copy_(tensors[info.name])
    return buffer


def unpack_views(
    message: Message, buffer: torch.Tensor
) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
    """Yields a message's tensors, as views of its buffer."""
    for info, start in zip(message, _offsets(message)[0], strict=True):
        flat = buffer[start : start + info.num_bytes]
        yield info, flat.view(getattr(torch, info.dtype)).reshape(info.shape)


def _offsets(message: Iterable[TensorInfo]) -> tuple[list[int], int]:
    """Returns the offset of each tensor, and the total size."""
    starts, end = [], 0
    for info in message:
        starts.append(end)
        end += -(-info.num_bytes // ALIGNMENT) * ALIGNMENT
    return starts, end


class RootDigest:
    """The roots over tensors, which are added in any order, as they come.

    digest = RootDigest("blake3")
    for name, tensor in tensors:
        digest.add_tensor(name, tensor)
    """

    def __init__(self, *names: HashName) -> None:
        self._names = names
        self.hashes: list[TensorHash] = []
        """Of the tensors added so far."""

    def add_tensor(self, name: str, tensor: torch.Tensor) -> None:
        """Adds a tensor; one on a device is copied to the CPU."""
        whole = tensor.detach().cpu().contiguous()
        content = whole.reshape(-1).view(torch.uint8).numpy()
        found = {hash_: HASHES[hash_](content).hexdigest() for hash_ in self._names}
        dtype = str(whole.dtype).removeprefix("torch.")
        self.hashes.append(TensorHash(name, dtype, tuple(whole.shape), **found))

    def roots(self) -> WeightsRoots:
        """Returns the roots over all that was added."""
        return roots_of(self.hashes)
