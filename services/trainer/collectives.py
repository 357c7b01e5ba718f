"""The process group of the ranks: joining it, collectives, and sums over all ranks."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed

from services.trainer.messages import LISTENER_VARIABLE
from trinity.config.plan.stage_plan import StagePlan
from trinity.errors import UserError

NamedTensors = Iterable[tuple[str, torch.Tensor]]
OWN_GROUP_TIMEOUT = timedelta(days=365)
"""Lost ranks are found by the service, not by their collectives."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """One rank of a worker group; all must call the collectives, in the same order."""

    rank: int
    num_ranks: int
    num_sharing: int = 1
    """Neighbouring ranks that share each sequence, and so have the same rows and results."""
    num_per_host: int | None = None
    """Neighbouring ranks on each host; None where all are on this one."""
    group: torch.distributed.ProcessGroup | None = field(default=None, compare=False)
    """The process group of the collectives; None for the default group."""

    def with_own_group(self) -> "Ranks":
        """Returns the same ranks with a separate process group, for collectives in another thread.
        Collective.
        """
        if self.num_ranks == 1:
            return self
        group = torch.distributed.new_group(timeout=OWN_GROUP_TIMEOUT, backend="gloo")
        return replace(self, group=group)

    def are_on_one_host(self, rank: int, other: int) -> bool:
        """Returns True if two ranks share a host."""
        return self.num_per_host is None or rank // self.num_per_host == other // self.num_per_host

    @property
    def is_first(self) -> bool:
        """True for rank 0."""
        return self.rank == 0

    @property
    def num_shares(self) -> int:
        """Number of shares that the rows of a batch are dealt in."""
        return self.num_ranks // self.num_sharing

    @property
    def share(self) -> int:
        """The share that this rank computes."""
        return self.rank // self.num_sharing

    @property
    def is_counted(self) -> bool:
        """True for one of the ranks that share sequences: sums take its values for all of them."""
        return self.rank % self.num_sharing == 0

    def all_reduce_sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, the same on all, in double precision."""
        if self.num_ranks == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        if not self.is_counted:
            tensor.zero_()
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=self.group)
        return [float(value) for value in tensor.tolist()]

    def all_reduce_matrix(self, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sums matrices of one shape over the ranks, in one message."""
        if self.num_ranks == 1:
            return matrix
        tensor = torch.from_numpy(matrix.copy())
        if not self.is_counted:
            tensor.zero_()
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=self.group)
        summed: npt.NDArray[np.float64] = tensor.numpy()
        return summed

    def all_reduce_max(self, value: float) -> float:
        """Returns the largest of the ranks' values."""
        if self.num_ranks == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64)
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX, group=self.group)
        return float(tensor.item())

    def broadcast_ints(self, values: Sequence[int]) -> list[int]:
        """Returns the first rank's numbers, on all ranks; the others pass as many."""
        if self.num_ranks == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        torch.distributed.broadcast(tensor, src=0, group=self.group)
        return [int(value) for value in tensor.tolist()]

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Returns the first rank's bytes, on all ranks."""
        if self.num_ranks == 1:
            return data
        (length,) = self.broadcast_ints([len(data)])
        tensor = torch.zeros(length, dtype=torch.uint8)
        if self.is_first:
            tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        torch.distributed.broadcast(tensor, src=0, group=self.group)
        return bytes(tensor.numpy())

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns the bytes of all ranks, in order, on the first rank; an empty list on others."""
        if self.num_ranks == 1:
            return [data]
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.num_ranks)]
        torch.distributed.all_gather(lengths, torch.tensor([len(data)]), group=self.group)
        sizes = [int(length) for length in lengths]
        own = torch.zeros(max(sizes), dtype=torch.uint8)
        if data:
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.zeros_like(own) for _ in sizes] if self.is_first else None
        torch.distributed.gather(own, found, dst=0, group=self.group)
        parts = zip(found or [], sizes, strict=False)
        return [bytes(part[:size].numpy()) for part, size in parts]

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.num_ranks > 1:
            torch.distributed.barrier(group=self.group)


def join_gang(timeout: timedelta) -> Ranks:
    """Forms the process group that the environment describes.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are torchrun's; rank 0 inherits the
    listening socket, so that no port is bound twice; it is bound to the group's address only.

    Raises: UserError if there are GPUs, but fewer than ranks.
    """
    rank, num_ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _open_store(rank, num_ranks, timeout)
    backend = "gloo"
    if torch.cuda.is_available():
        check_gpus(_ranks_here(num_ranks))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = "cpu:gloo,cuda:nccl"
    torch.distributed.init_process_group(
        backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout
    )
    return Ranks(rank, num_ranks, num_per_host=_ranks_here(num_ranks))


def _open_store(rank: int, num_ranks: int, timeout: timedelta) -> torch.distributed.TCPStore:
    return torch.distributed.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        num_ranks,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=int(os.environ[LISTENER_VARIABLE]) if rank == 0 else None,
    )


def check_gpus_of(plan: StagePlan) -> None:
    """Raises: UserError if the plan trains on GPUs and this machine has fewer than ranks."""
    if plan.num_rank_gpus:
        check_gpus(_ranks_here(plan.trainer_rank_num))


def _ranks_here(num_ranks: int) -> int:
    """Returns the number of ranks on this host, by default all."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", num_ranks))


def check_gpus(num_ranks: int) -> None:
    """Raises: UserError if there are fewer GPUs than ranks."""
    found = torch.cuda.device_count()
    if found < num_ranks:
        fewer = f"`trainer.rank_num: {found}`" if found else "`cluster.gpu_per_node: 0`"
        raise UserError(
            f"{num_ranks} rank{'s' if num_ranks > 1 else ''} cannot have a GPU each, as the "
            f"trainer sees {found}: let it see more (CUDA_VISIBLE_DEVICES, or the GPUs that its "
            f"container is given), or set {fewer}"
        )


def hash_on_rank_0(
    tensors: NamedTensors, hash_of: Callable[[NamedTensors], bytes], ranks: Ranks
) -> bytes:
    """Returns the first rank's hash, on all ranks. Collective."""
    if ranks.is_first:
        return ranks.broadcast_bytes(hash_of(tensors))
    consume(tensors)
    return ranks.broadcast_bytes(b"")


def consume(tensors: NamedTensors) -> None:
    """Iterates over the tensors, so that the other ranks can gather them."""
    deque(tensors, maxlen=0)


class MetricSums:
    """Sums by name, in double precision and detached.

    sums.add_share("loss", share)
    sums.all_reduce(ranks)            # the whole batch's
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add_share(self, name: str, value: torch.Tensor) -> None:
        """Adds the value of a micro-batch."""
        self._sums[name] = self._sums.get(name, torch.zeros(())) + value.detach().double()

    def all_reduce(self, ranks: Ranks) -> dict[str, float]:
        """Returns the sums over all ranks, for every name on any rank.

        A rank without rows may lack the metrics of a user-defined loss.
        """
        told = ranks.gather_bytes(json.dumps(list(self._sums)).encode())
        every = sorted({name for names in told for name in json.loads(names)})
        names = json.loads(ranks.broadcast_bytes(json.dumps(every).encode()))
        sums = ranks.all_reduce_sum([float(self._sums.get(name, 0.0)) for name in names])
        return dict(zip(names, sums, strict=True))
