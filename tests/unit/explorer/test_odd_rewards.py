"""What rewards of users do besides returning a number: one sentence each, and the next goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes

FILE = """
import os, signal, sys, threading, time
import numpy as np

def several(response):
    return np.array([1.0, 0.0])

def imaginary(response):
    return np.complex128(1j)

def enormous(response):
    return 10 ** 400

def enormous_part(response):
    return {"score": 10 ** 400}

def array_part(response):
    return {"right": np.zeros(3)}

def pair(response):
    return 1.0, {"why": "good"}

def reserved(response):
    return {"right": 1.0, "reward_failed": 0.0}

def generated(response):
    yield 1.0

def promised(response):
    async def later():
        return 1.0
    return {"score": later()}

def long_error(response):
    raise ValueError("x" * 3_000_000)

def odd_error(response):
    raise ValueError("a lone \\ud800 and a \\0")

class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def unprintable(response):
    raise Unprintable

def deep(response):
    return deep(response)

def huge(response):
    return bytearray(1 << 62)

def grouped(response):
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

def interrupted(response):
    raise KeyboardInterrupt

def cancelled(response):
    import asyncio
    raise asyncio.CancelledError

def stopped(response):
    raise StopIteration

def kills(response):
    os.kill(os.getpid(), signal.SIGKILL)

def closes(response):
    os.closerange(0, 3)
    return 1.0

def floods(response):
    sys.stdout.write("y" * 3_000_000)
    sys.stdout.flush()
    os.write(1, b"\\xff\\xfe" * 1000)
    sys.stderr.write("z" * 100_000)
    return 1.0

def lingers(response):
    threading.Thread(target=time.sleep, args=(600,)).start()
    return 1.0

def reads(response):
    return float(len(sys.stdin.read()) == 0)

def moves(response):
    os.chdir("/")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return 1.0

def keyed(response):
    return {1: 0.5, None: 0.5}

def truthy(response):
    return np.bool_(True)

def fine(response):
    return 1.0
"""
SAYS = {
    "several": "ndarray",
    "imaginary": "complex128",
    "enormous": "too large",
    "enormous_part": "too large",
    "array_part": "ndarray",
    "pair": "tuple",
    "reserved": "`reward_failed`",
    "generated": "generator",
    "promised": "no number",
    "long_error": "ValueError: xxx",
    "odd_error": "ValueError: a lone",
    "unprintable": "Unprintable",
    "deep": "RecursionError",
    "huge": "more memory",
    "grouped": "several",
    "interrupted": "KeyboardInterrupt",
    "cancelled": "CancelledError",
    "stopped": "StopIteration",
    "kills": "SIGKILL",
}
PAID = ("floods", "lingers", "reads", "moves", "keyed", "truthy", "fine", "closes")
MOST_CHARACTERS = 4000


@pytest.fixture(scope="module", autouse=True)
def _rewards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_folder(tmp_path_factory.mktemp("plugins"), odd_file=FILE):
        yield


async def test_an_odd_reward_is_one_sentence_and_the_next_one_is_scored(tmp_path: Path) -> None:
    wrong = []
    async with user_processes(1) as pool:
        for name in (*SAYS, *PAID):
            found = await outcome_of(
                tmp_path,
                timeout_seconds=20.0,
                processes=pool,
                default_reward_fn_type=f"odd_file.{name}",
            )
            text = found.failure
            if name in PAID:
                is_right = not text
            else:
                is_right = SAYS[name] in text and len(text) < MOST_CHARACTERS
            if not is_right:
                wrong.append((name, text[:300], len(text)))
    assert not wrong, "\n".join(map(str, wrong))
