"""The process group of one transfer; every wait in it has a time limit."""

import socket
from datetime import timedelta

import torch
import torch.distributed as dist

from trinity.transfer.in_time import in_time
from trinity.transfer.offer import Backend, Limits

SENDER = 0


class Group:
    """The sender, rank 0, and its receivers.

    Any failure in it raises TransferFailed.
    """

    def __init__(
        self,
        *,
        store: dist.Store,
        name: str,
        backend: Backend,
        rank: int,
        num_ranks: int,
        host: str,
        limits: Limits,
    ) -> None:
        self._limits = limits
        seconds = timedelta(seconds=max(limits.join_seconds, limits.stall_seconds))
        own = dist.PrefixStore(name, store)

        def meet() -> "dist.ProcessGroupGloo | dist.ProcessGroupNCCL":
            if backend == "nccl":
                return _nccl(own, rank, num_ranks, seconds)
            return _gloo(own, rank, num_ranks, seconds, host)

        self._processes = in_time(limits.join_seconds, "meet", meet)

    def broadcast(self, buffer: torch.Tensor) -> None:
        """Sends a buffer from the sender to all others."""
        in_time(
            self._limits.stall_seconds,
            "pass a message on",
            lambda: self._broadcast(buffer),
            abort=self.abort,
        )

    def abort(self) -> None:
        """Aborts all operations of the group."""
        self._processes.abort()

    def close(self) -> None:
        """Leaves the group, once everything is sent."""
        self._processes.shutdown()

    def _broadcast(self, buffer: torch.Tensor) -> None:
        options = dist.BroadcastOptions()
        options.rootRank = SENDER
        options.rootTensor = 0
        options.timeout = timedelta(seconds=self._limits.stall_seconds)
        if buffer.is_cuda:
            torch.cuda.set_device(buffer.device)
        self._processes.broadcast([buffer], options).wait()
        if buffer.is_cuda:
            torch.cuda.current_stream(buffer.device).synchronize()


def address_towards(host: str) -> str:
    """Returns this machine's address as a connection to `host` would use it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        name: str = probe.getsockname()[0]
        return name


def _gloo(
    store: dist.Store, rank: int, num_ranks: int, seconds: timedelta, host: str
) -> dist.ProcessGroupGloo:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
    options._timeout = seconds
    options._threads = 1
    return dist.ProcessGroupGloo(store, rank, num_ranks, options)


def _nccl(
    store: dist.Store, rank: int, num_ranks: int, seconds: timedelta
) -> "dist.ProcessGroupNCCL":
    """Creates the group; NCCL picks its interfaces (NCCL_SOCKET_IFNAME), and connects when first
    used.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = seconds
    return dist.ProcessGroupNCCL(store, rank, num_ranks, options)
