"""Users' functions share a process, each for a turn."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from services.buffer.domain.operators import FunctionChain, PipelineFunction
from services.buffer.workers import functions as functions_module
from services.buffer.workers.functions import NEEDS_UNKNOWN, FunctionRunner, ServiceUnavailable
from services.explorer.clients import buffer as explorer_buffer
from services.trainer import clients as trainer_clients
from tests.integration.buffer.made import Made, make_experience
from trinity.algorithm.advantage.needs import Needs
from trinity.algorithm.advantage.samples import Samples
from trinity.api.v1 import buffer_pb2 as pb
from trinity.data.codec import SampleRef, experience_to_proto
from trinity.operators.kinds import UserFunctionKindName
from trinity.operators.rollouts import Content, Rollouts
from trinity.operators.worker import READ_AT_ONCE
from trinity.types import EID

SLOW = "tests.integration.buffer.slow_advantage.slow"
ORIGIN = EID(stage="rft", batch=1, task=0, run=0, suffix="")
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


BIG = 300
READING = "tests.unit.buffer.reading"


def _bodies(places: Sequence[int]) -> list[bytes]:
    """Samples as they are stored, each with its place as the first log-probability."""
    place = SampleRef(tenant="t", experiment_id="e", assignment_id="a", taskset="s", task_index=0)
    made = [
        experience_to_proto(
            make_experience(Made(logprob=-float(number)), pb.Assignment(), ORIGIN), place
        )
        for number in places
    ]
    return [message.SerializeToString() for message in made]


@pytest.mark.parametrize("kind", ["advantage", "operator"])
async def test_a_function_reads_whole_samples_of_a_big_group_when_it_asks_for_them(
    kind: UserFunctionKindName,
) -> None:
    asked: list[list[int]] = []

    async def read(part: int, places: Sequence[int]) -> list[bytes]:
        assert part == 0
        asked.append(list(places))
        return _bodies(places)

    contents = [Content(prompt_text="", response_text="", info={}, metrics={})] * BIG
    part = Rollouts.of(Samples.of_groups([0.0] * BIG), contents=contents)
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**33) as functions:
        own = PipelineFunction(kind=kind, name=f"{READING}.{kind.title()}Reads", arguments={})
        own = replace(own, needs=await functions.needs("a", own))
        [untold] = await functions.call_function("a", own, [part])
        assert "not one that a buffer recorded" in untold
        [found] = await functions.call_function("a", own, [part], read)
        assert [place for places in asked for place in places] == list(range(BIG))
        assert len(asked) == -(-BIG // READ_AT_ONCE)
        [again] = await functions.call_function("a", own, [part], read)
    name = "group_advantages/sum/mean" if kind == "advantage" else "sum"
    for answer in (found, again):
        assert answer.metrics[name].tolist() == [-3.0 * sum(range(BIG))]


async def test_an_answer_whose_samples_could_not_be_loaded_is_no_later_ones() -> None:
    async def lost(_: int, places: Sequence[int]) -> list[bytes]:
        raise ConnectionError(f"no database for {places}")

    async def read(_: int, places: Sequence[int]) -> list[bytes]:
        return _bodies([7] * len(places))

    contents = [Content(prompt_text="", response_text="", info={}, metrics={})] * 2
    own = PipelineFunction(kind="operator", name=f"{READING}.Persistent", arguments={})
    async with FunctionRunner(limit_seconds=10, memory_bytes=2**33) as functions:
        own = replace(own, needs=await functions.needs("a", own))
        part = Rollouts.of(PART, contents=contents)
        with pytest.raises(ConnectionError):
            await functions.call_function("a", own, [part], lost)
        [found] = await functions.call_function("a", own, [part], read)
    assert found.metrics["first"].tolist() == [-7.0]


async def test_a_function_that_reads_on_and_on_has_no_more_time_than_others() -> None:
    async def read(_: int, places: Sequence[int]) -> list[bytes]:
        return _bodies(places)

    contents = [Content(prompt_text="", response_text="", info={}, metrics={})] * 2
    own = PipelineFunction(kind="operator", name=f"{READING}.Endless", arguments={})
    async with FunctionRunner(limit_seconds=3, memory_bytes=2**33) as functions:
        own = replace(own, needs=await functions.needs("a", own))
        part = Rollouts.of(PART, contents=contents)
        [found] = await functions.call_function("a", own, [part], read)
    assert found.startswith("it did not answer within")


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
