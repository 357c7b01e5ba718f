"""Users' functions share a process, each for a turn."""

from dataclasses import replace

from services.buffer.domain.operator import Operator
from services.buffer.functions import NEEDS_UNKNOWN, Functions
from trinity.algorithm.advantage.needs import Needs
from trinity.algorithm.advantage.samples import Samples

SLOW = "tests.integration.buffer.slow_advantage.slow"
PART = Samples.of_groups([0.0, 1.0])


def slow(seconds: float) -> Operator:
    return Operator(name=SLOW, arguments={"seconds": seconds})


async def test_a_turn_is_over_after_a_while_but_one_part_is_always_tried() -> None:
    async with Functions(limit_seconds=10, memory_bytes=2**31) as functions:
        assert len(await functions.compute(slow(0.0), [PART] * 20)) == 20
        assert 1 < len(await functions.compute(slow(0.3), [PART] * 20)) < 20
        assert len(await functions.compute(slow(1.1), [PART] * 20)) == 1


async def test_what_it_needs_is_known_without_waiting_for_the_turn_of_another() -> None:
    async with Functions(limit_seconds=10, memory_bytes=2**31) as functions:
        await functions.load([slow(0.0)])
        async with functions._turn:
            assert await functions.needs(slow(0.0)) == Needs()


async def test_samples_that_were_read_without_its_needs_are_not_given_to_it() -> None:
    async with Functions(limit_seconds=10, memory_bytes=2**31) as functions:
        wrong = replace(slow(0.0), needs=Needs(whole_step=True))
        assert await functions.compute(wrong, [PART] * 2) == [NEEDS_UNKNOWN] * 2
