"""Ray's queue actor between a producer and a consumer. Needs Ray alone; keeps nothing.

python ray_queue.py '{"cores": [2, 3], ...}'
"""

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
from ray.util.queue import Queue

if TYPE_CHECKING:
    from benchmarks.buffer.peers.measuring import BYTES_A_TOKEN, Parts, run
else:  # a script in an environment of its own, where nothing of ours is installed
    from measuring import BYTES_A_TOKEN, Parts, run

Item = dict[str, "np.ndarray[Any, Any]"]


class RayProducer:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def put(self, num_bytes: int, count: int, batch: int) -> float:
        return self._put(_items(num_bytes, count), batch)

    def put_tasks(self, num_bytes: int, count: int, batch: int) -> None:
        """Texts that are objects of their own: what is one object is sent once."""
        self._put([{"task": json.dumps({"prompt": "x" * num_bytes})} for _ in range(count)], batch)

    def _put(self, items: Sequence[object], batch: int) -> float:
        began = time.perf_counter()
        for first in range(0, len(items), batch):
            self._queue.put_nowait_batch(items[first : first + batch])
        return time.perf_counter() - began

    def put_each(self, num_bytes: int, count: int, outstanding: int) -> float:
        items = _items(num_bytes, count)
        put = self._queue.actor.put.remote
        waiting: list[Any] = []
        began = time.perf_counter()
        for item in items:
            if len(waiting) == outstanding:
                _, waiting = ray.wait(waiting, num_returns=1)
            waiting.append(put(item))
        ray.get(waiting)
        return time.perf_counter() - began

    def put_one(self) -> float:
        (item,) = _items(16 * 1024, 1)
        began = time.monotonic()
        self._queue.put(item)
        return began

    def put_for(self, num_bytes: int, seconds: float) -> None:
        items = _items(num_bytes, 256)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._queue.put_nowait_batch(items)


class RayConsumer:
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def get(self, count: int, batch: int) -> list[float]:
        return self._get(count, batch, "tokens")

    def get_tasks(self, count: int, batch: int) -> list[float]:
        return self._get(count, batch, "task")

    def _get(self, count: int, batch: int, field: str) -> list[float]:
        seconds = []
        for _ in range(count // batch):
            began = time.perf_counter()
            items = self._queue.get_nowait_batch(batch)
            assert all(len(item[field]) for item in items)
            seconds.append(time.perf_counter() - began)
        return seconds

    def wait(self) -> float:
        self._queue.get()
        return time.monotonic()


def _items(num_bytes: int, count: int) -> list[Item]:
    chance, length = np.random.default_rng(1), num_bytes // BYTES_A_TOKEN
    return [
        {
            "tokens": chance.integers(0, 150_000, length, dtype=np.int32),
            "logprobs": -chance.random(length, dtype=np.float32),
        }
        for _ in range(count)
    ]


def start() -> Parts:
    queue = Queue(actor_options={"num_cpus": 0})
    actor = ray.remote(num_cpus=0)
    producer, consumer = actor(RayProducer).remote(queue), actor(RayConsumer).remote(queue)

    def pids() -> Sequence[int]:
        return [ray.get(queue.actor.__ray_call__.remote(lambda _: os.getpid()))]

    def end() -> None:
        for actor in (producer, consumer):
            ray.kill(actor)
        queue.shutdown(force=True)

    return producer, consumer, pids, end


if __name__ == "__main__":
    run(start)
