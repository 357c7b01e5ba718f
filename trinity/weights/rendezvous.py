"""The rendezvous of a transfer: torch's TCPStore, bound to the trainer's address alone."""

import os
import secrets
import socket
from datetime import timedelta
from typing import Literal

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity.errors import TransferFailed
from trinity.runtime.host_port import join_address, split_address
from trinity.weights.identity import HasRoots
from trinity.weights.offer import Backend, OfferAddress, Receivers, ReceiverSlot, TransferTimeouts
from trinity.weights.process_group import run_with_deadline

NEVER = timedelta(days=365)
CLOSED = b""
WITHDRAWN = "these weights are no longer offered"
CONNECT_SECONDS = 5.0
STORE_SECONDS = 12.0
"""TCPStore asks the resolver for the name of its peer, which takes 10 s where no server answers."""
MAX_REASON = 500


class TransferRequest(BaseModel):
    """An explorer's request for a transfer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern="^[0-9a-f]{16}$")
    num_receivers: int = Field(ge=1, le=4096)
    have_gpu: bool


class TransferGrant(BaseModel):
    """The trainer's answer: start now, or a refusal with its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Backend = "gloo"
    num_ranks: int = 0
    refusal: str = ""


class ReceiverReport(BaseModel):
    """A receiver's result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["received", "failed"]
    reason: str = Field(default="", max_length=MAX_REASON)


class StoreKeys:
    """The store keys of an offer."""

    def __init__(self, group: str) -> None:
        self.requests = f"{group}/asks"
        self.closed = f"{group}/closed"
        self.tensors = f"{group}/tensors"
        self._group = group

    def transfer(self, request: str) -> str:
        """Returns the name of one transfer."""
        return f"{self._group}/{request}"

    def answer(self, request: str) -> str:
        """Returns the key of the answer to a request."""
        return f"{self.transfer(request)}/answer"


def tensors_key(transfer: str) -> str:
    """Returns the key of the list of tensors."""
    return StoreKeys(transfer.rpartition("/")[0]).tensors


def report_key(transfer: str, rank: int) -> str:
    """Returns the key of a receiver's report."""
    return f"{transfer}/report/{rank}"


class Rendezvous:
    """Accepts requests for one version; peers must know the group's secret name."""

    def __init__(self, *, host: str, name: str, seconds: float) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, 0), family=family) as listener:
            port = listener.getsockname()[1]
            self._store = dist.TCPStore(
                host,
                port,
                None,
                is_master=True,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
                master_listen_fd=os.dup(listener.fileno()),
            )
        self.host = host
        self.offer = OfferAddress(
            address=join_address(host, port), group=f"{name}-{secrets.token_hex(16)}"
        )
        self.keys = StoreKeys(self.offer.group)
        self._requests = _client(host, port, NEVER)

    def set_key(self, key: str, value: bytes) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def connect(self, seconds: float) -> dist.TCPStore:
        """Returns a connection for one transfer, as a waiting call blocks its connection."""
        host, port = split_address(self.offer.address)
        return _client(host, port, timedelta(seconds=seconds))

    def next_request(self) -> TransferRequest | None:
        """Returns the next request, in order; None once closed. Call it from one thread only."""
        while (text := self._requests.queue_pop(self.keys.requests)) != CLOSED:
            if request := _read(text):
                return request
        return None

    def answer_request(self, request: TransferRequest, answer: TransferGrant) -> None:
        """Answers a request."""
        self._store.set(self.keys.answer(request.id), answer.model_dump_json())

    def close_requests(self) -> None:
        """Accepts no more requests, and wakes the thread that waits for one."""
        self._store.set(self.keys.closed, "1")
        self._store.queue_push(self.keys.requests, CLOSED)

    def refuse_pending(self) -> None:
        """Refuses the requests made before it was closed."""
        while self._store.queue_len(self.keys.requests):
            if request := _read(self._store.queue_pop(self.keys.requests)):
                self.answer_request(request, TransferGrant(refusal=WITHDRAWN))


def _read(text: bytes) -> TransferRequest | None:
    """Returns None for an invalid request: any peer that knows the name can write."""
    try:
        return TransferRequest.model_validate_json(text)
    except ValidationError:
        return None


def open_store(address: str, seconds: float) -> dist.TCPStore:
    """Connects to a trainer's rendezvous, which ends with its trainer.

    Raises: TransferFailed.
    """
    host, port = split_address(address)

    def connect() -> dist.TCPStore:
        # TCPStore retries a refused connection until its timeout, and logs each attempt.
        with socket.create_connection((host, port), timeout=CONNECT_SECONDS):
            pass
        return _client(host, port, timedelta(seconds=seconds))

    try:
        return run_with_deadline(CONNECT_SECONDS + STORE_SECONDS, "reach the trainer", connect)
    except TransferFailed as error:
        raise TransferFailed(f"weights are no longer offered at {address}: {error}") from error


def _client(host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    store = dist.TCPStore(
        host,
        port,
        None,
        is_master=False,
        timeout=timedelta(seconds=STORE_SECONDS),
        wait_for_workers=False,
    )
    store.set_timeout(timeout)
    return store


def request_transfer(
    offer: OfferAddress,
    receivers: Receivers,
    *,
    limits: TransferTimeouts,
    weights: HasRoots,
) -> ReceiverSlot:
    """Asks for a transfer and waits for its turn; then the receivers must join at once. Blocks.

    Raises: TransferFailed.
    """
    store = open_store(offer.address, limits.join_seconds)
    keys = StoreKeys(offer.group)
    request = TransferRequest(
        id=secrets.token_hex(8), num_receivers=receivers.count, have_gpu=receivers.have_gpu
    )

    def send_request() -> TransferGrant:
        if store.check([keys.closed]):
            raise TransferFailed(WITHDRAWN)
        store.queue_push(keys.requests, request.model_dump_json())
        store.wait([keys.answer(request.id)], timedelta(seconds=limits.turn_seconds))
        return TransferGrant.model_validate_json(store.get(keys.answer(request.id)))

    answer = run_with_deadline(limits.turn_seconds, "hear from the trainer", send_request)
    if answer.refusal:
        raise TransferFailed(answer.refusal)
    return ReceiverSlot(
        address=offer.address,
        group=keys.transfer(request.id),
        backend=answer.backend,
        num_ranks=answer.num_ranks,
        first_rank=1,
        limits=limits,
        weights_sha256=weights.weights_sha256.hex(),
        weights_blake3=weights.weights_blake3.hex(),
    )
