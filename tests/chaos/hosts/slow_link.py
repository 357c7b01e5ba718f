"""A slow link, for kernels that have no netem: passes packets on, late, few at a time, not all.

python -m tests.chaos.hosts.slow_link NAMESPACE NAMESPACE DEVICE DELAY_SECONDS LOSS BYTES_PER_SECOND

Makes a device of that name in either namespace; what is routed into one comes out of the other.
Both go when this process does, which is when its standard input closes.
"""

import asyncio
import fcntl
import os
import random
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MAX_PACKET_BYTES = 65_536
MAX_QUEUED_SECONDS = 2.0
"""What would wait longer for its turn is dropped."""


class OneWay:
    """From one device into the other."""

    def __init__(
        self, *, source: int, target: int, delay_seconds: float, loss: float, rate: float
    ) -> None:
        self._source, self._target = source, target
        self._delay_seconds, self._loss, self._rate = delay_seconds, loss, rate
        self._free_at = 0.0
        self._chance = random.Random(1)

    def take(self) -> None:
        """The next packet."""
        packet = os.read(self._source, MAX_PACKET_BYTES)
        loop = asyncio.get_running_loop()
        begins = max(loop.time(), self._free_at)
        if self._chance.random() < self._loss or begins - loop.time() > MAX_QUEUED_SECONDS:
            return
        self._free_at = begins + (len(packet) / self._rate if self._rate else 0.0)
        loop.call_at(self._free_at + self._delay_seconds, self._give, packet)

    def _give(self, packet: bytes) -> None:
        with suppress(OSError):  # the other device is not up yet
            os.write(self._target, packet)


def tun_in(namespace: str, name: str) -> int:
    """A device of this name in that namespace, as a descriptor of this process.

    Only the thread that makes it changes its namespace, and ends.
    """
    made: list[int] = []

    def make() -> None:
        with (Path("/run/netns") / namespace).open() as place:
            _enter(place.fileno())
        descriptor = os.open("/dev/net/tun", os.O_RDWR)
        request = struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI)
        fcntl.ioctl(descriptor, TUNSETIFF, request)
        made.append(descriptor)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def _enter(namespace: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the namespace")


async def relay(one: int, other: int, delay_seconds: float, loss: float, rate: float) -> None:
    """Pass packets on both ways until standard input closes."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for source, target in ((one, other), (other, one)):
        way = OneWay(
            source=source, target=target, delay_seconds=delay_seconds, loss=loss, rate=rate
        )
        loop.add_reader(source, way.take)
    loop.add_reader(sys.stdin.fileno(), over.set)
    await over.wait()


if __name__ == "__main__":
    _, first, second, device, *numbers = sys.argv
    asyncio.run(relay(tun_in(first, device), tun_in(second, device), *map(float, numbers)))
