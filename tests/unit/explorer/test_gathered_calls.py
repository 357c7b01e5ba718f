"""Quick rewards that come together are sent together, and fail one by one all the same."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.explorer.rollout import user_process_pool as module
from services.explorer.rollout.isolated_workflows import IsolatedReward
from services.explorer.rollout.user_process_pool import CallBatch, UserProcessPool
from services.explorer.rollout.user_processes import UserProcess
from services.explorer.user_process import worker
from tests.unit.explorer.users import plugin_folder, user_processes
from trinity.plugins import REWARDS
from trinity.runtime.process.worker import WorkerFailed
from trinity.user_code.values import UserCodeFailed

FILE = """
import os, re, time

def noted(response, file):
    with open(file, "a") as notes:
        notes.write(response + "\\n")
    if response == "hangs":
        re.match(r"(a|aa)+$", "a" * 60 + "b")
    if response == "ends":
        os._exit(3)
    if response == "raises":
        raise ZeroDivisionError("no answer")
    if response.startswith("waits"):
        time.sleep(float(response[5:]))
    return float(len(response))
"""


@pytest.fixture(scope="module", autouse=True)
def _rewards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_folder(tmp_path_factory.mktemp("plugins"), noted_file=FILE):
        yield


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of calls that were sent together."""
    numbers: list[int] = []
    send = CallBatch._send

    def counted(batch: CallBatch, process: UserProcess) -> None:
        send(batch, process)
        numbers.append(len(batch.calls))

    monkeypatch.setattr(CallBatch, "_send", counted)
    return numbers


def reward_of(pool: UserProcessPool, notes: Path) -> IsolatedReward:
    source = REWARDS.get("noted_file.noted")
    return IsolatedReward(pool=pool, source=source, args={"file": str(notes)}, name="noted")


def as_after_quick_calls(pool: UserProcessPool) -> None:
    """Calls were quick, and some have just been sent."""
    pool._num_runs, pool._run_seconds = 100, 0.0005
    pool._last_sending = time.monotonic()


def begin(reward: IsolatedReward, responses: list[str]) -> list["asyncio.Task[dict[str, float]]"]:
    return [asyncio.create_task(reward({"response": response})) for response in responses]


def noted(notes: Path) -> Counter[str]:
    return Counter(notes.read_text().split())


NAMES = [f"answer-{number}" for number in range(20)]


async def test_quick_calls_that_come_together_are_sent_together(
    tmp_path: Path, sent: list[int]
) -> None:
    async with user_processes(2) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        found = await asyncio.gather(*begin(reward, NAMES))
    assert [numbers["noted"] for numbers in found] == [len(name) for name in NAMES]
    assert sent == [20]
    assert noted(tmp_path / "notes") == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize(("num_runs", "seconds"), [(0, 0.0), (9, 0.0001), (100, 0.1)])
async def test_control_calls_that_are_slow_or_not_known_are_sent_one_by_one(
    tmp_path: Path, sent: list[int], num_runs: int, seconds: float
) -> None:
    async with user_processes(1) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        pool._num_runs, pool._run_seconds = num_runs, seconds
        await asyncio.gather(*begin(reward, NAMES[:3]))
    assert sent == [1, 1, 1]


async def test_a_call_alone_waits_for_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GATHER_SECONDS", 600.0)
    async with user_processes(1) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        pool._last_sending -= 601.0
        assert await reward({"response": "alone"}) == {"noted": 5.0}


@pytest.mark.parametrize(
    ("response", "error"),
    [("ends", WorkerFailed), ("raises", UserCodeFailed)],
)
async def test_one_that_fails_among_others_fails_alone_and_all_run_once(
    tmp_path: Path, sent: list[int], response: str, error: type[Exception]
) -> None:
    async with user_processes(2) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        names = [*NAMES[:5], response, *NAMES[5:]]
        found = await asyncio.gather(*begin(reward, names), return_exceptions=True)
    assert sent[0] == 21
    assert isinstance(found.pop(5), error)
    assert found == [{"noted": float(len(name))} for name in NAMES]
    assert noted(tmp_path / "notes") == dict.fromkeys(names, 1)


async def test_one_that_hangs_holds_up_no_other_and_is_named_with_its_place(
    tmp_path: Path,
) -> None:
    async with user_processes(2) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        hanging = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        before = begin(reward, NAMES[:5])
        (hung,) = begin(hanging, ["hangs"])
        found = await asyncio.gather(*before, *begin(reward, NAMES[5:]))
        assert not hung.done()
        hung.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hung
        again = await reward({"response": "again"})
    assert found == [{"noted": float(len(name))} for name in NAMES]
    assert again == {"noted": 5.0}
    assert noted(tmp_path / "notes") == dict.fromkeys([*NAMES, "hangs", "again"], 1)
    assert hanging.stuck_at.startswith("the reward noted ran (")
    assert "noted_file.py, line 8)" in hanging.stuck_at
    assert reward.stuck_at == ""


@pytest.mark.parametrize("seconds", ["0.05", "0.12", "0.5"])
async def test_one_that_takes_longer_than_the_others_may_wait_runs_once_as_they_do(
    tmp_path: Path, seconds: str
) -> None:
    async with user_processes(1) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        names = [f"waits{seconds}", *NAMES]
        found = await asyncio.gather(*begin(reward, names))
    assert found == [{"noted": float(len(name))} for name in names]
    assert noted(tmp_path / "notes") == dict.fromkeys(names, 1)


@pytest.mark.parametrize("place", [0, 3, 19])
async def test_one_that_is_given_up_before_it_is_sent_is_left_out(
    tmp_path: Path, place: int
) -> None:
    async with user_processes(2) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        calls = begin(reward, NAMES)
        await asyncio.sleep(0)
        calls.pop(place).cancel()
        found = await asyncio.gather(*calls)
    names = [*NAMES[:place], *NAMES[place + 1 :]]
    assert found == [{"noted": float(len(name))} for name in names]
    assert noted(tmp_path / "notes") == dict.fromkeys(names, 1)


async def test_one_that_is_given_up_after_it_was_sent_costs_the_others_nothing(
    tmp_path: Path, sent: list[int]
) -> None:
    async with user_processes(2) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        calls = begin(reward, ["waits0.05", *NAMES])
        while not sent:  # noqa: ASYNC110  # sending is no event
            await asyncio.sleep(0)
        calls.pop(4).cancel()
        found = await asyncio.gather(*calls)
    names = ["waits0.05", *NAMES[:3], *NAMES[4:]]
    assert found == [{"noted": float(len(name))} for name in names]
    assert set(noted(tmp_path / "notes").values()) == {1}


async def test_one_that_hangs_after_it_was_given_up_is_killed_and_the_others_answered(
    tmp_path: Path, sent: list[int]
) -> None:
    async with user_processes(1) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        await reward.check()
        as_after_quick_calls(pool)
        calls = begin(reward, [NAMES[0], "hangs", *NAMES[1:]])
        while not sent:  # noqa: ASYNC110  # sending is no event
            await asyncio.sleep(0)
        calls.pop(1).cancel()
        found = await asyncio.gather(*calls)
    assert found == [{"noted": float(len(name))} for name in NAMES]
    assert noted(tmp_path / "notes") == dict.fromkeys([*NAMES, "hangs"], 1)


async def test_a_call_that_has_no_process_yet_is_named_when_it_is_given_up(tmp_path: Path) -> None:
    async with user_processes(1) as pool:
        reward = reward_of(pool, tmp_path / "notes")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await reward({"response": "first"})
    assert reward.stuck_at == "the reward noted waited for a process of users' code"


def test_a_process_declines_what_it_should_have_begun_before() -> None:
    channel: Any = None
    request = {"kind": "load", "parts": [], "number": 3}
    for begin_by, is_late in (
        ({"begin_by": time.monotonic() + 60.0}, False),
        ({}, False),
        ({"begin_by": time.monotonic() - 0.001}, True),
    ):
        answer = worker.answer_request(channel, {**request, **begin_by})
        assert answer["number"] == 3
        assert answer.get("is_late", False) is is_late


def test_an_answer_has_the_number_of_its_request_whatever_becomes_of_it() -> None:
    for kind, request in (("load", {"parts": []}), ("reward", {"part": {}})):
        channel: Any = None
        answer = worker.answer_request(channel, {"kind": kind, "number": 7, **request})
        assert answer["number"] == 7
