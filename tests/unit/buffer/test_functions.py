"""Users' functions share a process, each for a turn."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.buffer.domain.operators import FunctionChain, PipelineFunction
from services.buffer.workers import functions as functions_module
from services.buffer.workers.functions import NEEDS_UNKNOWN, FunctionRunner, ServiceUnavailable
from services.explorer.clients import buffer as explorer_buffer
from services.trainer import clients as trainer_clients
from trinity.algorithm.advantage.needs import Needs
from trinity.algorithm.advantage.samples import Samples

SLOW = "tests.integration.buffer.slow_advantage.slow"
PART = Samples.of_groups([0.0, 1.0])


def slow(seconds: float) -> PipelineFunction:
    return PipelineFunction(name=SLOW, arguments={"seconds": seconds})


async def test_a_turn_is_over_after_a_while_but_one_part_is_always_tried() -> None:
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**31) as functions:
        assert len(await functions.call_function("a", slow(0.0), [PART] * 20)) == 20
        assert 1 < len(await functions.call_function("a", slow(0.3), [PART] * 20)) < 20
        assert len(await functions.call_function("a", slow(1.1), [PART] * 20)) == 1


async def test_what_it_needs_is_known_without_waiting_for_the_turn_of_another() -> None:
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**31) as functions:
        await functions.load_functions("a", [slow(0.0)])
        async with functions._turn:
            assert await functions.needs("a", slow(0.0)) == Needs()


async def test_samples_that_were_read_without_its_needs_are_not_given_to_it() -> None:
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**31) as functions:
        wrong = replace(slow(0.0), needs=Needs(whole_step=True))
        assert await functions.call_function("a", wrong, [PART] * 2) == [NEEDS_UNKNOWN] * 2


def juiced() -> PipelineFunction:
    url = "http://127.0.0.1:1"
    return PipelineFunction(
        kind="operator", name="data_juicer", arguments={"server_url": url, "operators": []}
    )


async def test_what_asks_data_juicer_sees_a_group_a_call_and_others_of_ours_many() -> None:
    functions = FunctionRunner(limit_seconds=10, memory_bytes=2**31)
    own, grpo = juiced(), PipelineFunction(name="grpo", arguments={})
    own = replace(own, needs=await functions.needs("a", own))
    assert FunctionChain(operators=(), advantage=grpo).takes_many_groups
    assert not FunctionChain(operators=(own,), advantage=grpo).takes_many_groups
    whole = replace(grpo, needs=Needs(whole_step=True))
    assert FunctionChain(operators=(own,), advantage=whole).takes_many_groups


@pytest.mark.parametrize("num_before", [0, 2])
async def test_what_was_computed_before_a_service_went_away_is_kept(
    monkeypatch: pytest.MonkeyPatch, num_before: int
) -> None:
    answers = iter(["an answer"] * num_before)

    def call(_: PipelineFunction, __: Samples) -> str:
        for answer in answers:
            return answer
        raise ServiceUnavailable("it does not answer")

    monkeypatch.setattr(functions_module, "_call", call)
    functions = FunctionRunner(limit_seconds=10, memory_bytes=2**31)
    parts: Sequence[Samples] = [PART] * 4
    if num_before:
        assert await functions.call_function("a", juiced(), parts) == ["an answer"] * num_before
    else:
        with pytest.raises(ServiceUnavailable):
            await functions.call_function("a", juiced(), parts)


@pytest.mark.parametrize("patience", [trainer_clients.OPEN_SECONDS, explorer_buffer.OPEN_SECONDS])
def test_a_caller_that_opens_a_stage_waits_for_users_files_to_be_loaded(patience: float) -> None:
    """A call that is cut off before would load them again, and so would the next."""
    assert patience > functions_module.LOAD_SECONDS
