"""What rewards of users do besides returning a number: one sentence each, and the next goes on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.rewards.score import REWARD_FAILED

FILE = """
import os, signal, sys, threading, time
import numpy as np

def raises(response):
    raise ZeroDivisionError("no answer")

def nan(response):
    return {"score": float("nan")}

def infinite(response):
    return float("inf")

def text(response):
    return "good"

def nothing(response):
    pass

def empty(response):
    return {}

def listed(response):
    return [1.0]

def exits(response):
    raise SystemExit("enough")

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
RETURNED = {
    "nan": "returned nan as 'score': return a finite number",
    "infinite": "returned inf as 'infinite'",
    "text": "returned str 'good', neither a dict of named numbers nor a number",
    "nothing": "returned nothing, neither",
    "empty": "returned an empty dict, neither",
    "listed": "returned list, neither",
}
"""Said alike in the explorer and in a process of its own."""
SAYS = {
    **RETURNED,
    "raises": "ZeroDivisionError: no answer",
    "exits": "SystemExit: enough",
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


async def test_a_bad_reward_in_the_explorer_is_the_same_sentence(tmp_path: Path) -> None:
    for name, sentence in RETURNED.items():
        outcome = await outcome_of(tmp_path, default_reward_fn_type=f"odd_file.{name}")
        assert outcome.failure.startswith(f"the reward odd_file.{name} {sentence}")
        assert "services" not in outcome.failure
    outcome = await outcome_of(tmp_path, default_reward_fn_type="odd_file.raises")
    assert "ZeroDivisionError: no answer" in outcome.failure
    assert "odd_file.py, line" in outcome.failure


async def test_a_bad_reward_may_cost_the_answer_alone(tmp_path: Path) -> None:
    async with user_processes(1) as pool:
        for name in (*RETURNED, "raises", "exits", "kills"):
            outcome = await outcome_of(
                tmp_path,
                timeout_seconds=20.0,
                processes=pool,
                explorer={"on_bad_reward": "zero"},
                default_reward_fn_type=f"odd_file.{name}",
            )
            [experience] = outcome.experiences
            assert (experience.reward, experience.reward_parts) == (0.0, {"score": 0.0}), name
            assert experience.metrics == {"score": 0.0, REWARD_FAILED: 1.0}, name
