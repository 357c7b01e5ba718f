"""The process group of a transfer, with time limits for calls that may block without end.

torch's own timeouts cover only some of its waits: connecting to a store and querying it are not
among them.

This file alone uses torch's underscored options of a process group: gloo's interface and both
backends' timeouts have no other way in. They hold for torch 2.11 to 2.13;
tests/unit/runtime/test_library_internals.py fails with another version.
"""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from trinity.errors import TransferFailed
from trinity.weights.offer import Backend, TransferTimeouts

ValueT = TypeVar("ValueT")
LATE_SECONDS = 1.0
"""Grace period for calls that have their own timeout."""
SENDER = 0


def run_with_deadline(
    seconds: float,
    purpose: str,
    work: Callable[[], ValueT],
    *,
    abort: Callable[[], None] | None = None,
) -> ValueT:
    """Returns the result of `work`, from a thread that is abandoned if it is late.

    Raises: TransferFailed, also for other errors of `work`.
    """
    answer: Future[ValueT] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except TransferFailed as error:
            answer.set_exception(error)
        except Exception as error:  # the edge of torch's collectives, which raise RuntimeErrors
            answer.set_exception(TransferFailed(f"could not {purpose}: {_first_line(error)}"))

    threading.Thread(target=run, name="transfer", daemon=True).start()
    try:
        return answer.result(seconds + LATE_SECONDS)
    except TimeoutError:
        if abort is not None:
            abort()
        raise TransferFailed(f"could not {purpose} in {seconds:g} s") from None


def _first_line(error: Exception) -> str:
    """Drops the stack trace that torch appends to its messages."""
    return str(error).partition("\n")[0]


class TransferGroup:
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
        limits: TransferTimeouts,
    ) -> None:
        self._limits = limits
        seconds = timedelta(seconds=max(limits.join_seconds, limits.stall_seconds))
        own = dist.PrefixStore(name, store)

        def meet() -> "dist.ProcessGroupGloo | dist.ProcessGroupNCCL":
            if backend == "nccl":
                return _nccl(own, rank, num_ranks, seconds)
            return _gloo(own, rank, num_ranks, seconds, host)

        self._processes = run_with_deadline(limits.join_seconds, "meet", meet)

    def broadcast(self, buffer: torch.Tensor) -> None:
        """Sends a buffer from the sender to all others."""
        run_with_deadline(
            self._limits.stall_seconds,
            "pass a message on",
            lambda: self._broadcast(buffer),
            abort=self.abort,
        )

    def abort(self) -> None:
        """Aborts all operations of the group."""
        self._processes.abort()

    def leave(self) -> None:
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


def local_address_for(host: str) -> str:
    """Returns this machine's address as a connection to `host` would use it."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
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
