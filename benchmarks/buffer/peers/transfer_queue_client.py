"""TransferQueue between a producer and a consumer, in its default, which keeps nothing.

python transfer_queue_client.py '{"cores": [2, 3], ...}'
"""

import json
import time
from collections.abc import Iterator, Sequence
from itertools import count as counter
from typing import TYPE_CHECKING, Any

import psutil
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict

if TYPE_CHECKING:
    from benchmarks.buffer.peers.measuring import BYTES_A_TOKEN, Parts, run
else:  # a script in an environment of its own, where nothing of ours is installed
    from measuring import BYTES_A_TOKEN, Parts, run

FIELDS = ["tokens", "logprobs"]
PARTITION = "train"
POLL_SECONDS = 0.001
_names = counter()


class _Client:
    """A process with a client of its own."""

    def __init__(self, partition: str) -> None:
        transfer_queue.init()
        self._client = transfer_queue.get_client()
        self._partition = partition
        self._tasks = _of_tasks(partition)


class TransferQueueProducer(_Client):
    def put(self, num_bytes: int, count: int, batch: int) -> float:
        parts = list(_batches(num_bytes, count, batch))
        began = time.perf_counter()
        for part in parts:
            self._client.put(part, partition_id=self._partition)
        return time.perf_counter() - began

    def put_tasks(self, num_bytes: int, count: int, batch: int) -> None:
        texts = [json.dumps({"prompt": "x" * num_bytes}) for _ in range(batch)]
        for _ in range(count // batch):
            part = TensorDict({"task": NonTensorStack(*texts)}, batch_size=batch)
            self._client.put(part, partition_id=self._tasks)

    def put_each(self, num_bytes: int, count: int, outstanding: int) -> float:
        """The client awaits each of its puts; several at a time go through its coroutine."""
        import asyncio

        parts = list(_batches(num_bytes, count, 1))

        async def put_some() -> None:
            while parts:
                await self._client.async_put(parts.pop(), partition_id=self._partition)

        async def put_all() -> None:
            await asyncio.gather(*(put_some() for _ in range(outstanding)))

        began = time.perf_counter()
        self._client._run_coroutine(put_all())
        return time.perf_counter() - began

    def put_one(self) -> float:
        (part,) = _batches(16 * 1024, 1, 1)
        began = time.monotonic()
        self._client.put(part, partition_id=self._partition)
        return began

    def put_for(self, num_bytes: int, seconds: float) -> None:
        (part,) = _batches(num_bytes, 256, 256)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._client.put(part, partition_id=self._partition)


class TransferQueueConsumer(_Client):
    def get(self, count: int, batch: int) -> list[float]:
        return [self._get(batch) for _ in range(count // batch)]

    def get_tasks(self, count: int, batch: int) -> list[float]:
        return [self._get_tasks(batch) for _ in range(count // batch)]

    def wait(self) -> float:
        """Its controller looks every five seconds and gives up after one: so we ask again."""
        while not self._take(1):
            time.sleep(POLL_SECONDS)
        return time.monotonic()

    def _get(self, batch: int) -> float:
        began = time.perf_counter()
        assert self._take(batch)
        return time.perf_counter() - began

    def _get_tasks(self, batch: int) -> float:
        began = time.perf_counter()
        data = self._data(batch, ["task"], self._tasks)
        assert data is not None and all(len(task) for task in data["task"])
        return time.perf_counter() - began

    def _take(self, batch: int) -> bool:
        data = self._data(batch, FIELDS, self._partition)
        if data is None:
            return False
        assert all(tokens.numpy().size for tokens in data["tokens"])
        return True

    def _data(self, batch: int, fields: Sequence[str], partition: str) -> TensorDict | None:
        meta = self._client.get_meta(
            data_fields=fields,
            batch_size=batch,
            partition_id=partition,
            task_name="trainer",
        )
        return self._client.get_data(meta) if meta.size else None


def _of_tasks(partition: str) -> str:
    return f"{partition}-tasks"


def _batches(num_bytes: int, count: int, batch: int) -> Iterator[TensorDict]:
    length = num_bytes // BYTES_A_TOKEN
    for _ in range(0, count, batch):
        tokens = torch.randint(0, 150_000, (batch, length), dtype=torch.int32)
        values = {"tokens": tokens, "logprobs": -torch.rand(batch, length)}
        yield TensorDict(values, batch_size=batch)


def start() -> Parts:
    transfer_queue.init(OmegaConf.create({"controller": {"polling_mode": True}}))
    partition = f"{PARTITION}-{next(_names)}"
    actor = ray.remote(num_cpus=0)
    producer, consumer = (
        actor(TransferQueueProducer).remote(partition),
        actor(TransferQueueConsumer).remote(partition),
    )

    def pids() -> Sequence[int]:
        return [
            process.pid
            for process in psutil.process_iter()
            if any("SimpleStorageUnit" in word for word in process.cmdline())
        ]

    def end() -> None:
        for name in (partition, _of_tasks(partition)):
            transfer_queue.get_client().clear_partition(name)
        actors: tuple[Any, ...] = (producer, consumer)
        for actor in actors:
            ray.kill(actor)

    return producer, consumer, pids, end


if __name__ == "__main__":
    run(start)
