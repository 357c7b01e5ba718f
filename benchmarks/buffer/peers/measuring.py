"""Measures every peer in the same way, through the calls that its own module provides."""

import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

BYTES_A_TOKEN = 8
Sizes = dict[str, Any]
Figures = dict[str, float]
Parts = tuple[Any, Any, Callable[[], Sequence[int]], Callable[[], None]]
"""Producer and consumer, each an actor; process ids of what stores; and the end of it all."""


def run(start: Callable[[], Parts]) -> None:
    """Measure as the argument says and print the figures as JSON, on a line of its own."""
    sizes = json.loads(sys.argv[1])
    os.sched_setaffinity(0, set(sizes["cores"]))
    ray.init(num_cpus=8, include_dashboard=False, logging_level=logging.ERROR)
    figures = [_measure(start, sizes) for _ in range(sizes["runs"])]
    for of_run in figures:
        of_run["memory_mb"] = _memory(start, sizes)
    for of_run in figures:
        of_run["growth"] = _growth(start, sizes)
    ray.shutdown()
    names = sorted({name for of_run in figures for name in of_run})
    values = {name: [of_run[name] for of_run in figures if name in of_run] for name in names}
    print("\n" + json.dumps(values), flush=True)


def _measure(start: Callable[[], Parts], sizes: Sizes) -> Figures:
    producer, consumer, _, end = start()
    batch, large, small, huge = (sizes[name] for name in ("batch", "large", "small", "huge"))
    few, some = sizes["awaited"], sizes["outstanding"]

    def put(num_bytes: int, count: int) -> float:
        return count / float(ray.get(producer.put.remote(num_bytes, count, batch)))

    def get_seconds(count: int) -> float:
        return float(statistics.median(ray.get(consumer.get.remote(count, batch))))

    put(16 * 1024, batch)
    get_seconds(batch)
    figures = {"publish_16k": put(16 * 1024, large), "read_16k": batch / get_seconds(large)}
    each = producer.put_each.remote
    figures["awaited_1"] = few / ray.get(each(16 * 1024, few, 1))
    figures["awaited_64"] = some / ray.get(each(16 * 1024, some, 64))
    ray.get(consumer.get.remote(few + some, 1))
    figures["publish_2k"] = put(2 * 1024, small)
    figures["take_2k_ms"] = 1000 * get_seconds(small)
    put(64 * 1024, huge)
    figures["take_64k_ms"] = 1000 * get_seconds(huge)
    figures["wake_ms"] = 1000 * statistics.median(
        _wake(producer, consumer) for _ in range(sizes["wakes"])
    )
    for name, num_bytes in (("lease_2k_ms", 2 * 1024), ("lease_64k_ms", 64 * 1024)):
        figures[name] = 1000 * _lease(producer, consumer, num_bytes, sizes)
    end()
    return figures


def _lease(producer: Any, consumer: Any, num_bytes: int, sizes: Sizes) -> float:
    """The call that takes a batch of tasks, as texts; the first one is not counted, as of ours."""
    batch = sizes["batch"]
    count = batch + sizes["leases"]
    ray.get(producer.put_tasks.remote(num_bytes, count, batch))
    return float(statistics.median(ray.get(consumer.get_tasks.remote(count, batch))[1:]))


def _wake(producer: Any, consumer: Any) -> float:
    """Measures from the call that puts one row to the end of the call that waits for it."""
    waiting = consumer.wait.remote()
    time.sleep(0.05)
    began = ray.get(producer.put_one.remote())
    return float(ray.get(waiting) - began)


def _memory(start: Callable[[], Parts], sizes: Sizes) -> float:
    """Memory of the processes that store: they keep everything that is never taken."""
    producer, _, pids, end = start()
    ray.get(producer.put_for.remote(16 * 1024, sizes["load_seconds"]))
    megabytes = sum(map(_resident_mb, pids()))
    end()
    return megabytes


def _resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/status") as status:
        (line,) = (line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def _growth(start: Callable[[], Parts], sizes: Sizes) -> float:
    """Rate with many rows stored over the rate with few."""
    producer, _, _, end = start()
    batch, counted, few = sizes["batch"], sizes["small"], sizes["few_rows"]

    def put(count: int) -> float:
        return count / float(ray.get(producer.put.remote(2 * 1024, count, batch)))

    put(few)
    rate = put(counted)
    for _ in range(sizes["many_rows"] // few - 1):
        put(few)
    ratio = put(counted) / rate
    end()
    return ratio
