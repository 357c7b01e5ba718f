"""A trainer's offer in a process of its own: `python -m ... MODEL [die]`; prints where it is."""

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE, Popen

import torch
from safetensors.torch import load_file

from trinity.weights import sending, tensors
from trinity.weights.offer import OfferAddress, TransferTimeouts
from trinity.weights.sending import WeightsSender

LIMITS = TransferTimeouts(
    turn_seconds=60.0, join_seconds=60.0, stall_seconds=60.0, whole_seconds=120.0
)
SMALL_MESSAGE_BYTES = 16 << 10
DIES_AT_MESSAGE = 3


def weights_of(model: Path) -> dict[str, torch.Tensor]:
    """By their names in the file."""
    weights: dict[str, torch.Tensor] = load_file(model / "model.safetensors")
    return weights


@contextmanager
def dying_trainer(model: Path) -> Iterator[OfferAddress]:
    """Offers a model's weights, and is killed when it has sent some of them."""
    command = [sys.executable, "-m", __name__, str(model)]
    with Popen(command, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield OfferAddress(**json.loads(process.stdout.readline()))
            assert process.wait(60.0) == -signal.SIGKILL
        finally:
            process.kill()


def main() -> None:
    """Offer until killed."""
    tensors.MESSAGE_BYTES = SMALL_MESSAGE_BYTES
    num_packed = 0

    def dying_pack(*arguments: object) -> torch.Tensor:
        nonlocal num_packed
        num_packed += 1
        if num_packed == DIES_AT_MESSAGE:
            os.kill(os.getpid(), signal.SIGKILL)
        return tensors.pack(*arguments)  # type: ignore[arg-type]

    sending.pack = dying_pack  # type: ignore[assignment,attr-defined]
    offer = WeightsSender(
        weights_of(Path(sys.argv[1])),
        host="127.0.0.1",
        name="weights",
        limits=LIMITS,
        transfer_lock=threading.Lock(),
    )
    sys.stdout.write(json.dumps(asdict(offer.offer)) + "\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
