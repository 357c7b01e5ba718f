"""The trainer's side of the rendezvous: torch's TCPStore, bound to the given address alone."""

import os
import secrets
import socket
from datetime import timedelta
from typing import Literal

import torch.distributed as dist
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trinity.errors import TransferFailed
from trinity.weights.offer import Backend, Limits, Offer, Receivers, Seat
from trinity.weights.process_group import in_time

NEVER = timedelta(days=365)
CLOSED = b""
WITHDRAWN = "these weights are no longer offered"
CONNECT_SECONDS = 5.0
MAX_REASON = 500


class Ask(BaseModel):
    """An explorer's request for a transfer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern="^[0-9a-f]{16}$")
    num_receivers: int = Field(ge=1, le=4096)
    have_gpu: bool


class RendezvousAnswer(BaseModel):
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


class Keys:
    """The store keys of an offer."""

    def __init__(self, group: str) -> None:
        self.asks = f"{group}/asks"
        self.closed = f"{group}/closed"
        self.tensors = f"{group}/tensors"
        self._group = group

    def transfer(self, ask: str) -> str:
        """Returns the name of one transfer."""
        return f"{self._group}/{ask}"

    def answer(self, ask: str) -> str:
        """Returns the key of the answer to a request."""
        return f"{self.transfer(ask)}/answer"


def tensors_key(transfer: str) -> str:
    """Returns the key of the list of tensors."""
    return Keys(transfer.rpartition("/")[0]).tensors


def report_key(transfer: str, rank: int) -> str:
    """Returns the key of a receiver's report."""
    return f"{transfer}/report/{rank}"


class Rendezvous:
    """Accepts requests for one version; peers must know the group's secret name."""

    def __init__(self, *, host: str, name: str, seconds: float) -> None:
        with socket.create_server((host, 0)) as listener:
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
        self.offer = Offer(address=f"{host}:{port}", group=f"{name}-{secrets.token_hex(16)}")
        self.keys = Keys(self.offer.group)
        self._questions = _client(host, port, NEVER)

    def put(self, key: str, value: bytes) -> None:
        """Sets a key."""
        self._store.set(key, value)

    def connect(self, seconds: float) -> dist.TCPStore:
        """Returns a connection for one transfer, as a waiting call blocks its connection."""
        host, _, port = self.offer.address.rpartition(":")
        return _client(host, int(port), timedelta(seconds=seconds))

    def next_ask(self) -> Ask | None:
        """Returns the next request, in order; None once closed. Call it from one thread only."""
        while (text := self._questions.queue_pop(self.keys.asks)) != CLOSED:
            if ask := _read(text):
                return ask
        return None

    def answer(self, ask: Ask, answer: RendezvousAnswer) -> None:
        """Answers a request."""
        self._store.set(self.keys.answer(ask.id), answer.model_dump_json())

    def close(self) -> None:
        """Accepts no more requests, and wakes the thread that waits for one."""
        self._store.set(self.keys.closed, "1")
        self._store.queue_push(self.keys.asks, CLOSED)

    def refuse_rest(self) -> None:
        """Refuses the requests made before it was closed."""
        while self._store.queue_len(self.keys.asks):
            if ask := _read(self._store.queue_pop(self.keys.asks)):
                self.answer(ask, RendezvousAnswer(refusal=WITHDRAWN))


def _read(text: bytes) -> Ask | None:
    """Returns None for an invalid request: any peer that knows the name can write."""
    try:
        return Ask.model_validate_json(text)
    except ValidationError:
        return None


def open_store(address: str, seconds: float) -> dist.TCPStore:
    """Connects to a trainer's rendezvous, which ends with its trainer.

    Raises: TransferFailed.
    """
    host, _, port = address.rpartition(":")

    def connect() -> dist.TCPStore:
        # TCPStore retries a refused connection until its timeout, and logs each attempt.
        with socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS):
            pass
        return _client(host, int(port), timedelta(seconds=seconds))

    try:
        return in_time(2 * CONNECT_SECONDS, "reach the trainer", connect)
    except TransferFailed as error:
        raise TransferFailed(f"weights are no longer offered at {address}: {error}") from error


def _client(host: str, port: int, timeout: timedelta) -> dist.TCPStore:
    store = dist.TCPStore(
        host,
        port,
        None,
        is_master=False,
        timeout=timedelta(seconds=CONNECT_SECONDS),
        wait_for_workers=False,
    )
    store.set_timeout(timeout)
    return store


def ask(offer: Offer, receivers: Receivers, *, limits: Limits, weights_sha256: bytes) -> Seat:
    """Asks for a transfer and waits for its turn; then the receivers must join at once. Blocks.

    Raises: TransferFailed.
    """
    store = open_store(offer.address, limits.join_seconds)
    keys = Keys(offer.group)
    question = Ask(
        id=secrets.token_hex(8), num_receivers=receivers.count, have_gpu=receivers.have_gpu
    )

    def asked() -> RendezvousAnswer:
        if store.check([keys.closed]):
            raise TransferFailed(WITHDRAWN)
        store.queue_push(keys.asks, question.model_dump_json())
        store.wait([keys.answer(question.id)], timedelta(seconds=limits.turn_seconds))
        return RendezvousAnswer.model_validate_json(store.get(keys.answer(question.id)))

    answer = in_time(limits.turn_seconds, "hear from the trainer", asked)
    if answer.refusal:
        raise TransferFailed(answer.refusal)
    return Seat(
        address=offer.address,
        group=keys.transfer(question.id),
        backend=answer.backend,
        num_ranks=answer.num_ranks,
        first_rank=1,
        limits=limits,
        weights_sha256=weights_sha256.hex(),
    )
