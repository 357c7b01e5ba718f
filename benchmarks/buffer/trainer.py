"""Our trainer's own client in a separate process, without a trainer around it."""

import asyncio
import json
import sys
import threading
import time
import uuid
from pathlib import Path

from benchmarks.buffer.worker import serve
from services.trainer.batch_rows import RowReader
from services.trainer.checkpoints.weights import NO_PARENT
from services.trainer.clients import TrainerBufferClient
from services.trainer.types import WeightsOnDisk
from trinity.runtime.presence import WaitRegistry
from trinity.runtime.retry import RpcRetry
from trinity.runtime.rpc.channel import open_sync_channel
from trinity.types import StageKey

WAIT_SECONDS = 20.0


class LoadTrainer:
    """The calls that the benchmark makes of the trainer's child process."""

    def __init__(self, address: str) -> None:
        self._channel = open_sync_channel(address)
        self._reader = RowReader(formatter=None, mixed_with_rollouts=False)
        self._incarnation = 0

    def open(self, key: dict[str, str], plan_json: str) -> None:
        """Open a stage, begin to train it, and publish its starting weights."""
        waits = WaitRegistry(owner="benchmark", on_change=lambda: None)
        patience = RpcRetry(peer="buffer", seconds=60.0, stop=threading.Event(), waits=waits)
        self._buffer = TrainerBufferClient(
            channel=self._channel, key=StageKey(**key), retry=patience
        )
        self._buffer.open_stage(plan_json, seed=7)
        begun = self._buffer.begin_incarnation(str(uuid.uuid4()))
        self._incarnation = begun.incarnation
        self.record(version=0)

    def record(self, version: int) -> None:
        """Let the explorer go on to what needs this version."""
        weights = WeightsOnDisk(
            version=version,
            incarnation=self._incarnation,
            path=Path(),
            manifest_sha256=b"",
            weights_sha256=bytes(32),
            parent=NO_PARENT,
        )
        self._buffer.record_version(weights)

    def read(self, first: int, last: int) -> list[float]:
        """The batches of these steps; answers the seconds that each took."""
        return [self._read(step)[0] for step in range(first, last + 1)]

    def wait(self, step: int) -> float:
        """Wait for a batch; answers when it was there, on the clock that all processes share."""
        return self._read(step)[1]

    def _read(self, step: int) -> tuple[float, float]:
        began = time.monotonic()
        answer = self._buffer.get_batch(step, self._incarnation, self._reader, WAIT_SECONDS)
        ended = time.monotonic()
        if answer.batch is None:
            raise RuntimeError(f"no batch for step {step}: {answer.reason}")
        assert all(row.tokens.size for row in answer.batch.rows)
        return ended - began, ended


if __name__ == "__main__":
    asyncio.run(serve(LoadTrainer(**json.loads(sys.argv[1]))))
