"""Users' rewards run in processes: one that hangs, dies or exits takes nothing with it."""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from services.explorer.rollout import user_process_pool
from services.explorer.rollout import user_processes as user_processes_module
from services.explorer.rollout.isolated_workflows import IsolatedReward, needs_process
from services.explorer.rollout.user_process_pool import MIN_FREE_BYTES, UserProcessPool
from services.explorer.rollout.user_processes import UserProcess
from services.explorer.telemetry import RunnerNumbers, RunnerRouter
from tests.unit.explorer.runs import outcome_of
from tests.unit.explorer.users import LoopLag, plugin_folder, user_processes
from trinity.errors import UserError
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward
from trinity.runtime.logs import LEVEL_VARIABLE, TextFormatter
from trinity.runtime.process.box import OPEN_BOX, box_refusal
from trinity.runtime.process.worker import WorkerFailed
from trinity.types import JsonObject
from trinity.user_code.values import UserCodeFailed

FILE = """
import asyncio, contextlib, logging, os, re, signal, subprocess, time
from trinity.rewards import RewardFn

logger = logging.getLogger(__name__)

STATE = []

def pattern(response, ones=34):
    return float(bool(re.match(r"(\\d+\\s*)+x$", "1" * ones)))

def sleeps(response):
    time.sleep(600)

def counts(response):
    STATE.append(response)
    print("printed by a user", flush=True)
    return {"pid": float(os.getpid()), "calls": float(len(STATE))}

def slow(response):
    time.sleep(0.5)
    return float(os.getpid())

async def awaited(response):
    await asyncio.sleep(0.01)
    return {"length": float(len(response))}

class Awaited(RewardFn):
    def __init__(self, scale=1.0):
        self.scale = scale
    async def __call__(self, *, response):
        await asyncio.sleep(0)
        return self.scale * len(response)

def later(response):
    return awaited(response)

def leaves(response):
    os._exit(3)

def exits(response):
    raise SystemExit("enough")

def sees(response_token, finish_reason, task, messages, truth, response_length, **others):
    return {
        "sum": float(response_token.sum()),
        "length": float(response_length == len(response_token)),
        "stop": float(finish_reason.value == "stop"),
        "row": float(task == {"question": "1+1=", "answer": "2"}),
        "chat": float(messages[-1]["content"] == "1+1="),
        "truth": float(truth),
        "variable": float(os.environ.get("TRINITY_TEST_SEEN", "0")),
    }

def of_verl(data_source, solution_str, ground_truth, extra_info, **kwargs):
    right = data_source == "gsm8k" and extra_info == {"index": 3} and kwargs == {"bonus": 2}
    return {"score": float(right and solution_str == ground_truth), "pred": solution_str}

def logs(response):
    logger.info("%s is read", response, extra={"where": STATE, "length": len(response)})
    logger.debug("not asked for")
    try:
        raise ZeroDivisionError("no answer")
    except ZeroDivisionError:
        logger.exception("a line\\nof %s", response)
    return 1.0

def ends_explorer(response):
    try:
        os.kill(int(response), 0)
    except ProcessLookupError:
        return 0.0
    return 1.0

def ends_all(response):
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(-1, signal.SIGKILL)
    return 1.0

def leaves_child(response):
    return float(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)

def writes(response):
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, response.encode() + b"\\n")
    return 1.0

class Refusing(RewardFn):
    def __init__(self):
        raise OSError("no judge")
    def __call__(self, *, response):
        return 0.0
"""


@pytest.fixture(scope="module", autouse=True)
def _rewards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with plugin_folder(tmp_path_factory.mktemp("plugins"), isolated_file=FILE):
        yield


def _reward(pool: UserProcessPool, name: str) -> IsolatedReward:
    return IsolatedReward(
        pool=pool, source=REWARDS.get(f"isolated_file.{name}"), args={}, name=name
    )


@pytest.mark.parametrize("name", ["pattern", "sleeps"])
async def test_a_reward_that_hangs_fails_its_attempt_alone(tmp_path: Path, name: str) -> None:
    async with user_processes() as pool:
        counts = _reward(pool, "counts")
        await counts.check()
        hanging = asyncio.create_task(
            outcome_of(
                tmp_path,
                timeout_seconds=2.0,
                processes=pool,
                default_reward_fn_type=f"isolated_file.{name}",
            )
        )
        num_others = 0
        while not hanging.done():
            await counts({"response": "a"})
            num_others += 1
        outcome = await hanging
    assert num_others > 0
    assert "it took more than 2 s (`explorer.max_timeout`)" in outcome.failure
    assert f"the reward isolated_file.{name} ran (" in outcome.failure
    assert "isolated_file.py, line " in outcome.failure
    assert outcome.duration_seconds < 4.0


async def test_control_the_same_reward_in_the_explorer_holds_up_its_loop(tmp_path: Path) -> None:
    async with LoopLag() as lag:
        await outcome_of(
            tmp_path,
            timeout_seconds=60.0,
            default_reward_fn_type="isolated_file.pattern",
            reward_fn_args={"ones": 24},
        )
    assert lag.longest > 0.3


@pytest.mark.parametrize(("name", "length"), [("awaited", 3), ("Awaited", 3), ("later", 3)])
@pytest.mark.parametrize("isolated", [True, False])
async def test_an_asynchronous_reward_is_awaited(
    tmp_path: Path, name: str, length: int, isolated: bool
) -> None:
    async with user_processes() as pool:
        outcome = await outcome_of(
            tmp_path,
            processes=pool if isolated else None,
            default_reward_fn_type=f"isolated_file.{name}",
        )
    [experience] = outcome.experiences
    assert experience.reward == length


async def test_a_reward_that_ends_its_process_is_named_and_the_next_has_another() -> None:
    async with user_processes(1) as pool:
        calls = [_reward(pool, name) for name in ("leaves", "exits", "counts")]
        with pytest.raises(WorkerFailed, match=r"ended \(with exit code 3\)"):
            await calls[0]({"response": "a"})
        with pytest.raises(UserCodeFailed, match="SystemExit: enough"):
            await calls[1]({"response": "a"})
        assert (await calls[2]({"response": "a"}))["calls"] == 1.0


needs_box = pytest.mark.skipif(bool(box_refusal(OPEN_BOX)), reason="this machine allows no box")


@needs_box
async def test_a_reward_ends_neither_its_explorer_nor_anything_else() -> None:
    async with user_processes(1) as pool:
        reached = await _reward(pool, "ends_explorer")({"response": str(os.getpid())})
        assert reached == {"ends_explorer": 0.0}
        assert await _reward(pool, "ends_all")({"response": "a"}) == {"ends_all": 1.0}


async def test_control_without_a_box_a_reward_could_end_its_explorer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(user_processes_module, "box_refusal", lambda _: "not here")
    async with user_processes(1) as pool:
        reached = await _reward(pool, "ends_explorer")({"response": str(os.getpid())})
        assert reached == {"ends_explorer": 1.0}


@needs_box
async def test_processes_of_a_reward_end_with_it() -> None:
    before = sleepers()
    async with user_processes(1) as pool:
        await _reward(pool, "leaves_child")({"response": "a"})
        await until(lambda: bool(sleepers() - before))  # its name is Python's for an instant
    await until(lambda: not sleepers() - before)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(6_000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it was awaited for a minute")


def sleepers() -> set[str]:
    """Numbers of the processes that `leaves_child` starts."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes() == b"sleep\x00600\x00":
                found.add(process.name)
    return found


@pytest.mark.parametrize("line", ["printed", "[1]", '{"call": 0}', '{"numbers": {"score": 1.0}}'])
async def test_a_reward_that_writes_to_the_channel_is_told_so(line: str) -> None:
    async with user_processes(1) as pool:
        with pytest.raises(WorkerFailed, match="your code wrote to the channel"):
            await _reward(pool, "writes")({"response": line})
        assert (await _reward(pool, "counts")({"response": "a"}))["calls"] == 1.0


async def test_a_process_is_kept_warm_and_keeps_the_state_of_modules() -> None:
    async with user_processes() as pool:
        counts = _reward(pool, "counts")
        found = [await counts({"response": "a"}) for _ in range(3)]
    assert [numbers["calls"] for numbers in found] == [1.0, 2.0, 3.0]
    assert len({numbers["pid"] for numbers in found} - {float(os.getpid())}) == 1


async def test_a_further_process_needs_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_process_pool, "available_bytes", lambda: MIN_FREE_BYTES - 1)
    async with user_processes(3) as pool:
        slow = _reward(pool, "slow")
        await asyncio.gather(*(slow({"response": "a"}) for _ in range(8)))
        assert pool.num_processes == 1


async def test_slow_rewards_get_further_processes_up_to_the_limit() -> None:
    async with user_processes(3) as pool:
        slow = _reward(pool, "slow")
        found = await asyncio.gather(*(slow({"response": "a"}) for _ in range(16)))
        assert pool.num_processes <= 3
    assert 2 <= len({numbers["slow"] for numbers in found}) <= 3


async def test_lines_of_a_reward_are_in_the_log_of_its_runner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "INFO")
    lines, runners = logging.NullHandler(), RunnerNumbers(2)
    router = RunnerRouter(lines, tmp_path)
    router.setFormatter(TextFormatter())
    monkeypatch.setattr(logging.getLogger(), "handlers", [router])
    async with user_processes(2) as pool:
        logs = _reward(pool, "logs")

        async def run(response: str) -> None:
            with runners.running():
                assert await logs({"response": response}) == {"logs": 1.0}

        await asyncio.gather(run("first"), run("second"))
    router.close()
    for number, name in enumerate(("first", "second")):
        text = (tmp_path / f"explorer_runner_{number}.log").read_text()
        assert f"isolated_file: {name} is read where=[] length={len(name)}" in text
        assert f"isolated_file: a line\\nof {name}\nTraceback" in text
        assert "ZeroDivisionError: no answer" in text
        assert "not asked for" not in text
        assert text.count("is read") == 1


async def test_a_reward_gets_what_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_TEST_SEEN", "7")
    async with user_processes() as pool:
        outcome = await outcome_of(
            tmp_path, processes=pool, default_reward_fn_type="isolated_file.sees"
        )
    [experience] = outcome.experiences
    sequence = experience.sequence
    assert experience.metrics == {
        "sum": float(sequence.tokens[sequence.prompt_length :].sum()),
        "length": 1.0,
        "stop": 1.0,
        "row": 1.0,
        "chat": 1.0,
        "truth": 2.0,
        "variable": 7.0,
    }


async def test_a_function_of_verls_gets_its_arguments_in_its_process_too() -> None:
    async with user_processes() as pool:
        source = REWARDS.get("isolated_file.of_verl")
        args: JsonObject = {"bonus": 2}
        elsewhere = IsolatedReward(
            pool=pool, source=source, args=args, name="isolated_file.of_verl"
        )
        reward = BoundReward(source, args, "of_verl", elsewhere=elsewhere)
        row = {"data_source": "gsm8k", "extra_info": {"index": 3}}
        numbers = await reward.score(response="7", truth="7", ground_truth="7", task=row)
    assert numbers == {"score": 1.0}


async def test_a_reward_that_cannot_be_made_is_said_when_the_stage_opens() -> None:
    async with user_processes() as pool:
        reward = _reward(pool, "Refusing")
        with pytest.raises(UserError, match="Refusing cannot be constructed: OSError: no judge"):
            await reward.check()


async def test_values_that_cannot_travel_are_named() -> None:
    async with user_processes() as pool:
        reward = _reward(pool, "counts")
        with pytest.raises(UserError, match="'response', which holds a object"):
            await reward({"response": object()})


def test_rewards_of_ours_stay_in_the_explorer_unless_a_user_gives_a_pattern() -> None:
    names = ("math_reward", "format_reward", "exact_match_reward", "gsm8k_reward")
    assert not any(needs_process(REWARDS.get(name), {}) for name in names)
    assert needs_process(REWARDS.get("format_reward"), {"pattern": r"(\d+\s*)+x$"})
    assert needs_process(REWARDS.get("isolated_file.pattern"), {})


async def test_a_users_pattern_in_a_reward_of_ours_is_killed_too() -> None:
    async with user_processes() as pool:
        reward = IsolatedReward(
            pool=pool,
            source=REWARDS.get("format_reward"),
            args={"pattern": r"(\d+\s*)+x"},
            name="format_reward",
        )
        assert await reward({"response": "1x"}) == {"format_score": 0.1}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await reward({"response": "1" * 40})
        assert reward.stuck_at.startswith("the reward format_reward ran (")
        assert await reward({"response": "2x"}) == {"format_score": 0.1}


async def test_a_further_process_has_loaded_the_rewards_before_it_gets_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call would count the import as its own time, and more processes would start."""
    noted = tmp_path / "imports"
    (tmp_path / "dotted_reward.py").write_text(
        f"with open({str(noted)!r}, 'a') as file:\n    file.write('imported\\n')\n"
        "def score(response):\n    return 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with user_processes() as pool:
        source = REWARDS.get("dotted_reward.score")
        reward = IsolatedReward(pool=pool, source=source, args={}, name="dotted_reward.score")
        noted.write_text("")
        await reward.check()
        async with pool.lease(), pool.lease():
            assert len(noted.read_text().split()) == pool.num_processes == 2


def test_a_queue_that_is_shorter_than_a_start_gets_no_further_process() -> None:
    pool = UserProcessPool(max_processes=4)
    assert pool._may_grow, "the first one"
    pool._all = {cast(UserProcess, object())}
    pool._waiting.extend(cast("asyncio.Future[UserProcess]", None) for _ in range(256))
    pool._start_seconds, pool._last_end = 5.0, time.monotonic() + 60.0
    for seconds, is_worth_it in ((0.01, False), (0.1, True)):
        pool._lease_seconds = seconds
        assert pool._may_grow is is_worth_it
    pool._lease_seconds, pool._last_end = 0.01, time.monotonic() - 60.0
    assert pool._may_grow, "nothing has ended for a minute"
