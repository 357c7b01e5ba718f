"""Priority functions of users run in a process of their own, for so long and no longer."""

import pytest

from services.buffer.workers.functions import FunctionFailed, FunctionRunner
from trinity.algorithm.priority.candidate import Candidate

OWN = "tests.integration.buffer.own_priorities"
CANDIDATES = [
    Candidate(model_version=3, use_count=uses, reward=1.0, advantage=0.5, normal=0.0)
    for uses in (1, 2)
]


async def test_what_does_not_end_is_ended_and_others_are_served_again() -> None:
    async with FunctionRunner(limit_seconds=0.5, memory_bytes=2**31) as priorities:
        await priorities.load_priority("a", f"{OWN}.endless", {})
        with pytest.raises(FunctionFailed, match=r"did not answer within 0\.5 s"):
            await priorities.compute_priorities("a", f"{OWN}.endless", {}, CANDIDATES)
        found = await priorities.compute_priorities(
            "a", f"{OWN}.oldest_first", {"weight": 2.0}, CANDIDATES
        )
        assert found == [-6.0, None]


async def test_what_is_no_number_is_refused() -> None:
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**31) as priorities:
        with pytest.raises(FunctionFailed, match="gave 'high', where a finite number or None is"):
            await priorities.compute_priorities("a", f"{OWN}.wordy", {}, CANDIDATES)
        with pytest.raises(FunctionFailed, match="defines no 'missing'"):
            await priorities.load_priority("a", f"{OWN}.missing", {})


async def test_ours_need_no_process() -> None:
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**31) as priorities:
        assert await priorities.compute_priorities(
            "a", "linear_decay", {"decay": 0.5}, CANDIDATES
        ) == [
            2.5,
            2.0,
        ]
        with pytest.raises(FunctionFailed, match="TypeError"):
            await priorities.compute_priorities("a", "linear_decay", {"sigma": 0.5}, CANDIDATES)
