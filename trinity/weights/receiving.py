"""An engine's side of a transfer, in the process that holds the weights."""

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

import torch

from trinity.errors import TransferFailed
from trinity.runtime.host_port import split_address
from trinity.weights.identity import WeightsRoots, same_weights
from trinity.weights.offer import ReceiverSlot
from trinity.weights.process_group import TransferGroup, local_address_for, run_with_deadline
from trinity.weights.rendezvous import (
    MAX_REASON,
    ReceiverReport,
    open_store,
    report_key,
    tensors_key,
)
from trinity.weights.tensors import (
    RootDigest,
    TensorInfo,
    allocate_buffer,
    parse_layout,
    unpack_views,
)


class WeightsReceiver:
    """Receives weights.

    Invariant: `tensors` always yields every tensor that was announced, so that a loader ends as
    usual; after a failure the rest are zeros. They count only if `failure` is empty in the end.

        # TransferFailed: the model is unchanged
        receiver = WeightsReceiver(slot, index=0, device="cpu")
        model.load_weights(receiver.tensors())
        if receiver.finish():
            ...  # the reason not to use these weights
    """

    def __init__(self, slot: ReceiverSlot, *, index: int, device: str) -> None:
        self._slot = slot
        self._rank = slot.first_rank + index
        self._device = device if slot.backend == "nccl" else "cpu"
        self._store = open_store(slot.address, slot.limits.join_seconds)
        self._digest = RootDigest("blake3" if slot.weights_blake3 else "sha256")
        self._is_whole = False
        self.failure = ""
        tensors = run_with_deadline(
            slot.limits.join_seconds,
            "read the trainer's list of tensors",
            lambda: self._store.get(tensors_key(slot.group)),
        )
        self._messages = parse_layout(tensors)
        self._group = TransferGroup(
            store=open_store(slot.address, slot.limits.join_seconds),
            name=slot.group,
            backend=slot.backend,
            rank=self._rank,
            num_ranks=slot.num_ranks,
            host=local_address_for(split_address(slot.address)[0]),
            limits=slot.limits,
        )

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields all tensors by name, as they arrive."""
        promised = [info for message in self._messages for info in message]
        num_given = 0
        try:
            for info, tensor in self._received():
                num_given += 1
                yield info.name, tensor
        except (TransferFailed, RuntimeError, MemoryError) as error:  # e.g. out of memory
            self.failure = str(error) or type(error).__name__
        for info in promised[num_given:]:
            yield info.name, info.empty().zero_()
        self._is_whole = True

    def finish(self) -> str:
        """Returns the reason not to use the weights; empty if they are the announced ones."""
        if not self.failure and not self._is_whole:
            self.failure = "not all tensors were consumed"
        announced = WeightsRoots(
            bytes.fromhex(self._slot.weights_sha256), bytes.fromhex(self._slot.weights_blake3)
        )
        is_announced = same_weights(self._digest.roots(), announced)
        if not self.failure and not is_announced:
            self.failure = "the weights received are not those that were announced: hash differs"
        self._report()
        if self.failure:
            self._group.abort()
        else:
            self._group.leave()
        return self.failure

    def _received(self) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
        whole_seconds = self._slot.limits.whole_seconds
        deadline = time.monotonic() + whole_seconds
        for message in self._messages:
            if time.monotonic() > deadline:
                raise TransferFailed(f"not done in {whole_seconds:g} s")
            buffer = allocate_buffer(message, self._device)
            self._group.broadcast(buffer)
            for info, tensor in unpack_views(message, buffer):
                self._digest.add_tensor(info.name, tensor)
                yield info, tensor

    def _report(self) -> None:
        """Tells the trainer, so that it need not wait; a trainer that is gone is ignored."""
        state: Literal["failed", "received"] = "failed" if self.failure else "received"
        report = ReceiverReport(state=state, reason=self.failure[:MAX_REASON])
        with suppress(RuntimeError):
            self._store.set(report_key(self._slot.group, self._rank), report.model_dump_json())
