"""A process that holds weights as an engine does, and takes them in one way or another."""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from safetensors import safe_open

from services.trainer.checkpoints.dealt import WEIGHTS_NAME
from trinity.weights import manifest, tensors
from trinity.weights.identity import HASHES, HashName, WeightsRoots
from trinity.weights.offer import OfferAddress, Receivers, TransferTimeouts
from trinity.weights.receiving import WeightsReceiver
from trinity.weights.rendezvous import request_transfer

Held = dict[str, torch.Tensor]


class ReceivingJob(Protocol):
    """One way of taking weights; a dataclass, so that it can be sent."""

    def prepare(self) -> Callable[[Held], None]:
        """Returns the part that is timed, and does everything before it."""
        ...


@dataclass(frozen=True)
class FromMemory:
    """Takes weights as an engine's worker does, from the question to the checked hash."""

    offer: dict[str, str]
    limits: dict[str, float]
    root: str

    def prepare(self) -> Callable[[Held], None]:
        return self._take

    def _take(self, held: Held) -> None:
        slot = request_transfer(
            OfferAddress(**self.offer),
            Receivers(count=1, have_gpu=False),
            limits=TransferTimeouts(**self.limits),
            weights=WeightsRoots(weights_blake3=bytes.fromhex(self.root)),
        )
        arrival = WeightsReceiver(slot, index=0, device="cpu")
        _load(arrival.tensors(), held)
        failure = arrival.finish()
        assert not failure, failure


@dataclass(frozen=True)
class FromFiles:
    """Takes weights as the explorer does: checks every file, then loads all."""

    directory: Path
    manifest_sha256: bytes

    def prepare(self) -> Callable[[Held], None]:
        return self._take

    def _take(self, held: Held) -> None:
        manifest.verify(self.directory, self.manifest_sha256)
        with safe_open(self.directory / WEIGHTS_NAME, "pt") as file:
            _load(((name, file.get_tensor(name)) for name in file.keys()), held)  # noqa: SIM118


@dataclass(frozen=True)
class Broadcast:
    """Messages of these lengths by torch alone, into nothing."""

    place: Path
    lengths: list[int]

    def prepare(self) -> Callable[[Held], None]:
        buffers = [torch.empty(length, dtype=torch.uint8) for length in self.lengths]
        group = broadcast_group(self.place, rank=1)

        def take(_: Held) -> None:
            for buffer in buffers:
                group.broadcast(buffer, 0).wait()

        return take


@dataclass(frozen=True)
class Copying:
    """The file next to this one, unchecked."""

    file: Path

    def prepare(self) -> Callable[[Held], None]:
        target = self.file.parents[2] / "copy"
        target.unlink(missing_ok=True)
        return lambda _: _copy(self.file, target)


@dataclass(frozen=True)
class Hashing:
    """Hashes all weights that are held."""

    name: HashName

    def prepare(self) -> Callable[[Held], None]:
        return lambda held: _hash(held, self.name)


@dataclass(frozen=True)
class Adding:
    """The product of the adapter's matrices to each layer, in float32, as the trainer merges it."""

    def prepare(self) -> Callable[[Held], None]:
        return _add


class Receiver:
    """The process; one job at a time.

    with Receiver(shapes, dtype) as receiver:
        seconds = receiver.seconds(Hashing())
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype) -> None:
        context = multiprocessing.get_context("spawn")
        self._jobs, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, dict(shapes), dtype))

    def __enter__(self) -> "Receiver":
        self._process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._jobs.send(None)
        self._process.join()

    def seconds(self, job: ReceivingJob, *, meanwhile: Callable[[], None] | None = None) -> float:
        """Returns the seconds of a job; `meanwhile` is this process's part of it."""
        self._jobs.send(job)
        if meanwhile is not None:
            meanwhile()
        answer = self._jobs.recv()
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return float(answer)


def broadcast_group(place: Path, *, rank: int) -> dist.ProcessGroupGloo:
    """The two of them, over loopback; they meet at a file."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(dist.FileStore(str(place), 2), rank, 2, options)


def messages_of(weights: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors that our transfer sends, in the form in which it sends them."""
    described = tensors.parse_layout(tensors.dump_layout(weights))
    return [tensors.pack(message, weights, "cpu") for message in described]


def _serve(jobs: Connection, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> None:
    torch.set_num_threads(1)
    held: Held = {name: torch.zeros(shape, dtype=dtype) for name, shape in shapes.items()}
    while (job := jobs.recv()) is not None:
        try:
            take = job.prepare()
            begun = time.perf_counter()
            take(held)
            jobs.send(time.perf_counter() - begun)
        except Exception as error:  # sent to the caller
            jobs.send(f"{type(job).__name__}: {error!r}")


def _load(arriving: Iterator[tuple[str, torch.Tensor]], held: Held) -> None:
    """Loads the weights, and keeps those of an adapter apart."""
    for name, tensor in arriving:
        if name in held:
            held[name].copy_(tensor)
        else:
            held[name] = tensor.clone()


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _hash(held: Held, hash_name: HashName) -> None:
    digest = HASHES[hash_name]()
    for name, tensor in held.items():
        if ".lora_" not in name:
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy())


def _add(held: Held) -> None:
    for name in [name for name in held if name.endswith(".lora_A.weight")]:
        layer = held[name.replace(".lora_A", "")]
        up = held[name.replace(".lora_A", ".lora_B")]
        layer.copy_(layer.float() + up @ held[name])
