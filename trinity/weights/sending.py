"""A trainer's side of a transfer."""

import logging
import threading
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist

from trinity.errors import TransferFailed
from trinity.weights.offer import Backend, TransferTimeouts
from trinity.weights.process_group import SENDER, TransferGroup
from trinity.weights.rendezvous import (
    WITHDRAWN,
    ReceiverReport,
    Rendezvous,
    TransferGrant,
    TransferRequest,
    report_key,
)
from trinity.weights.tensors import dump_layout, pack, parse_layout

logger = logging.getLogger(__name__)


class WeightsSender:
    """Sends one version of weights to each receiver that asks, one at a time, until withdrawn.

    The tensors must not change while the offer stands. A receiver that fails costs only its own
    transfer.

        sender = WeightsSender(
            tensors, host="127.0.0.1", name="weights", limits=limits, transfer_lock=lock
        )
        announce(sender.offer)
        sender.withdraw()
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        host: str,
        name: str,
        limits: TransferTimeouts,
        transfer_lock: threading.Lock,
    ) -> None:
        self._tensors = tensors
        self._limits = limits
        self._transfer_lock = transfer_lock
        self._messages = dump_layout(tensors)
        rendezvous = Rendezvous(host=host, name=name, seconds=limits.join_seconds)
        rendezvous.set_key(rendezvous.keys.tensors, self._messages)
        self._rendezvous: Rendezvous | None = rendezvous
        self.offer = rendezvous.offer
        """The announcement."""
        self._is_withdrawn = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(rendezvous,), name="weights-offer", daemon=True
        )
        self._thread.start()

    def withdraw(self, wait_seconds: float = 0.0) -> None:
        """Begins no more transfers; waits up to `wait_seconds` for the current one."""
        rendezvous, self._rendezvous = self._rendezvous, None
        if rendezvous is not None:
            self._is_withdrawn.set()
            rendezvous.close_requests()
        self._thread.join(wait_seconds)

    def _serve(self, rendezvous: Rendezvous) -> None:
        while (request := rendezvous.next_request()) is not None:
            with self._transfer_lock:
                if self._is_withdrawn.is_set():
                    rendezvous.answer_request(request, TransferGrant(refusal=WITHDRAWN))
                else:
                    self._serve_request(rendezvous, request)
        rendezvous.refuse_pending()
        self._tensors = {}

    def _serve_request(self, rendezvous: Rendezvous, request: TransferRequest) -> None:
        started = time.perf_counter()
        about = {"group": request.id, "num_receivers": request.num_receivers}
        try:
            self._send(rendezvous, request)
        except TransferFailed as error:
            logger.warning("weights not sent", extra=about | {"reason": str(error)})
            return
        except Exception:  # the edge of a thread: the next request is still served
            logger.exception("weights not sent", extra=about)
            return
        seconds = round(time.perf_counter() - started, 3)
        logger.info("weights sent", extra=about | {"seconds": seconds})

    def _send(self, rendezvous: Rendezvous, request: TransferRequest) -> None:
        backend, device = _choose_backend(request)
        num_ranks = 1 + request.num_receivers
        transfer = rendezvous.keys.transfer(request.id)
        rendezvous.answer_request(request, TransferGrant(backend=backend, num_ranks=num_ranks))
        group = TransferGroup(
            store=rendezvous.connect(self._limits.join_seconds),
            name=transfer,
            backend=backend,
            rank=SENDER,
            num_ranks=num_ranks,
            host=rendezvous.host,
            limits=self._limits,
        )
        try:
            deadline = time.monotonic() + self._limits.whole_seconds
            for message in parse_layout(self._messages):
                if time.monotonic() > deadline:
                    raise TransferFailed(f"not done in {self._limits.whole_seconds:g} s")
                group.broadcast(pack(message, self._tensors, device))
            self._await_reports(rendezvous.connect(self._limits.stall_seconds), transfer, num_ranks)
        except BaseException:
            group.abort()
            raise
        group.leave()

    def _await_reports(self, store: dist.Store, transfer: str, num_ranks: int) -> None:
        """Waits for all receivers' reports; the connection must stay open until then."""
        keys = [report_key(transfer, rank) for rank in range(1, num_ranks)]
        try:
            store.wait(keys, timedelta(seconds=self._limits.stall_seconds))
        except RuntimeError as error:
            raise TransferFailed("a receiver did not confirm the weights") from error
        for key in keys:
            report = ReceiverReport.model_validate_json(store.get(key))
            if report.state != "received":
                raise TransferFailed(f"refused: {report.reason}")


def _choose_backend(request: TransferRequest) -> tuple[Backend, str]:
    """Chooses NCCL where both ends have GPUs."""
    if request.have_gpu and torch.cuda.is_available() and dist.is_nccl_available():
        return "nccl", f"cuda:{torch.cuda.current_device()}"
    return "gloo", "cpu"
