"""Calls over the address of a run are turns of its session: stored first, and given again."""

import asyncio
import gc
import random
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from services.explorer.openai_api import session as sessions
from tests.unit.explorer.session_run import (
    WAIT_SECONDS,
    Run,
    ask,
    text_of,
)
from trinity.types import Experience


async def talk(client: openai.AsyncOpenAI, *questions: str) -> list[str]:
    """A conversation."""
    said: list[str] = []
    for question in questions:
        said.append(question)
        said.append(text_of(await ask(client, *said)))
    return said[1::2]


def same(one: Experience, other: Experience) -> bool:
    own, its = one.sequence, other.sequence
    arrays = ("tokens", "action_mask", "rollout_logprobs")
    texts = ("prompt_length", "prompt_text", "response_text", "role_spans")
    return (
        all(np.array_equal(getattr(own, name), getattr(its, name)) for name in arrays)
        and all(getattr(own, name) == getattr(its, name) for name in texts)
        and (one.sampling, one.version_spans) == (other.sampling, other.version_spans)
        and one.finish_reason == other.finish_reason
        and one.arrays.keys() == other.arrays.keys()
    )


async def test_an_attempt_gets_what_the_one_before_it_got_and_goes_on(run: Run) -> None:
    async with run.begin() as client:
        first = await talk(client, "a", "b", "c")
    before, seeds = run.answers, list(run.engine.seeds)
    async with run.begin() as client:
        assert await talk(client, "a", "b", "c", "d")
    assert [same(*pair) for pair in zip(before, run.answers, strict=False)] == [True] * 3
    assert [answer.response_text for answer in run.answers[:3]] == first
    assert run.engine.seeds[:3] == seeds
    assert len(run.engine.seeds) == 4, "stored turns are not sampled again"
    assert all(answer.origin is not None for answer in run.answers)


async def test_names_of_answers_are_those_of_their_turns(run: Run) -> None:
    async with run.begin() as client:
        first = await ask(client, "a")
    async with run.begin() as client:
        again = await ask(client, "a")
        plain = await client.completions.create(model="m", prompt="b", n=2, max_tokens=4)
        stream = await client.completions.create(model="m", prompt="c", stream=True, max_tokens=4)
        streamed = {chunk.id async for chunk in stream}
        asked = {"token_ids": [1], "sampling_params": {"max_tokens": 4}}
        tokens = await client.post("../inference/v1/generate", body=asked, cast_to=object)
    names = [turn.id.replace("-", "") for turn in run.shelf.turns]
    assert first.id == again.id == f"chatcmpl-{names[0]}"
    assert (plain.id, streamed) == (f"cmpl-{names[1]}", {f"cmpl-{names[3]}"})
    assert tokens["request_id"] == names[4]  # type: ignore[index]


async def test_where_an_attempt_says_something_else_a_branch_begins(run: Run) -> None:
    async with run.begin() as client:
        await talk(client, "a", "b")
    async with run.begin() as client:
        await talk(client, "a", "x")
    root, one, other = run.shelf.turns
    assert one.parent_id == other.parent_id == root.id
    assert one.prompt_sha256 != other.prompt_sha256


async def test_the_same_request_gets_another_answer_and_again_in_their_order(run: Run) -> None:
    async with run.begin() as client:
        several = await ask(client, "a", n=2)
        third = await ask(client, "a")
    assert [turn.ordinal for turn in run.shelf.turns] == [0, 1, 2]
    asked = len(run.engine.seeds)
    async with run.begin() as client:
        one = await ask(client, "a")
        two = await ask(client, "a", n=2)
        assert text_of(await ask(client, "a")) not in map(text_of, (one, two, third))
    told = [choice.message.content for choice in (*several.choices, *third.choices)]
    assert [choice.message.content for choice in (*one.choices, *two.choices)] == told
    assert len(run.engine.seeds) == asked + 1


async def test_seeds_follow_from_places_and_not_from_the_order_of_calls(run: Run) -> None:
    async with run.begin() as client:
        await talk(client, "a", "b")
        await talk(client, "z")
    by_prompt = {turn.prompt_sha256: turn.payload for turn in run.shelf.turns}
    run.shelf.turns.clear()
    async with run.begin() as client:
        await talk(client, "z")
        await talk(client, "a", "b")
    assert {turn.prompt_sha256: turn.payload for turn in run.shelf.turns} == by_prompt


async def test_an_answer_is_told_whole_only_once_it_is_stored(run: Run) -> None:
    run.shelf.held = True
    async with run.begin() as client:
        asking = asyncio.ensure_future(ask(client, "a"))
        async with asyncio.timeout(WAIT_SECONDS):
            await run.shelf.arrived.wait()
        assert not asking.done()
        assert run.answers == []
        run.shelf.report()
        assert text_of(await asking) == run.answers[0].response_text


async def test_deltas_flow_at_once_and_the_end_follows_the_commit(run: Run) -> None:
    run.shelf.held = True
    async with run.begin() as client:
        stream = await ask(client, "a", stream=True)
        chunks = aiter(stream)
        told = ""
        async with asyncio.timeout(WAIT_SECONDS):
            while len(told) < run.engine.num_tokens:
                told += (await anext(chunks)).choices[0].delta.content or ""
            await run.shelf.arrived.wait()
        assert run.answers == []
        run.shelf.report()
        rest = [chunk async for chunk in chunks]
    assert rest[-1].choices[0].finish_reason == "stop"
    assert told == run.answers[0].response_text


async def test_a_stored_answer_is_streamed_as_if_it_were_new(run: Run) -> None:
    async with run.begin() as client:
        first = text_of(await ask(client, "a", logprobs=True))
    async with run.begin() as client:
        stream = await ask(client, "a", stream=True, logprobs=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == first
    told = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
    assert sum(len(one.content) for one in told) == run.engine.num_tokens
    assert len(run.engine.seeds) == 1


async def test_what_is_not_stored_in_time_is_503_and_a_retry_finds_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "COMMIT_SECONDS", 0.01)
    run.shelf.held = True
    async with run.begin() as client:
        with pytest.raises(openai.InternalServerError, match="send the same request again") as told:
            await ask(client, "a")
        assert told.value.status_code == 503
        run.shelf.report()
        assert text_of(await ask(client, "a")) == run.answers[0].response_text
    assert len(run.engine.seeds) == 1


async def test_a_stream_whose_turn_is_refused_ends_with_an_error_and_no_end(run: Run) -> None:
    run.shelf.refusal = "the lease is over"
    async with run.begin() as client:
        stream = await ask(client, "a", stream=True)
        with pytest.raises(openai.APIError, match="the lease is over"):
            async for chunk in stream:
                assert chunk.choices[0].finish_reason is None
        with pytest.raises(openai.InternalServerError, match="the lease is over"):
            await ask(client, "a")
    assert run.answers == []


async def test_a_client_that_left_before_the_commit_finds_its_answer(run: Run) -> None:
    run.shelf.held = True
    async with run.begin() as client:
        await given_up(run, asyncio.ensure_future(ask(client, "a")))
        await ask(client, "a")
    assert len(run.engine.seeds) == 1
    assert len(run.shelf.turns) == 1


async def test_a_limit_of_answers_counts_those_that_were_made(run: Run) -> None:
    """Neither a refused call nor a retry of an answer that was not received is one."""
    run.shelf.held = True
    async with run.begin() as client:
        run.model.max_answers = 2
        with pytest.raises(openai.BadRequestError, match="all of its 2 answers"):
            await ask(client, "a", n=3)
        assert run.engine.seeds == []
        for asked in ("a", "b"):
            leaving = asyncio.ensure_future(ask(client, asked))
            await given_up(run, leaving)
            assert text_of(await ask(client, asked))
        with pytest.raises(openai.BadRequestError, match="all of its 2 answers"):
            await ask(client, "c")
    assert len(run.engine.seeds) == len(run.answers) == len(run.model.session_turns) == 2


async def given_up(run: Run, asking: "asyncio.Future[Any]") -> None:
    """Waits until an answer is on its way; its client leaves, and then it is stored."""
    async with asyncio.timeout(WAIT_SECONDS):
        await run.shelf.arrived.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        while any(slot.is_held for slot in held_slots(run)):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.01)
    run.shelf.arrived.clear()
    run.shelf.report()


def held_slots(run: Run) -> list[Any]:
    session = run.api._sessions[run.model]
    return [slot for slots in session._slots.values() for slot in slots]


async def test_an_unloaded_session_goes_on_as_if_it_had_been_held(run: Run) -> None:
    async with run.begin() as client:
        session = run.api._sessions[run.model]
        first = await ask(client, "a")
        session.unload()
        assert not session.tree.turns
        assert (await ask(client, "a")).id != first.id, "its client has the first"
        session.unload()
        await ask(client, "a", text_of(first), "b")
        run.shelf.held = True
        asking = asyncio.ensure_future(ask(client, "z"))
        async with asyncio.timeout(WAIT_SECONDS):
            run.shelf.arrived.clear()
            await run.shelf.arrived.wait()
        session.unload()
        assert len(session.tree.turns) == 3, "a turn is on its way"
        run.shelf.report()
        await asking
    assert run.shelf.turns[2].parent_id == run.shelf.turns[0].id
    assert [turn.ordinal for turn in run.shelf.turns] == [0, 1, 0, 0]
    assert len(run.engine.seeds) == 4


async def test_a_session_goes_on_without_turns_whose_content_was_removed(run: Run) -> None:
    async with run.begin() as client:
        await talk(client, "a", "b")
    run.shelf.turns[0].payload = b""
    async with run.begin() as client:
        await talk(client, "a", "b")
    assert [turn.ordinal for turn in run.shelf.turns] == [0, 0, 1, 0]
    assert run.shelf.turns[3].parent_id == run.shelf.turns[2].id


async def test_what_a_tenant_has_no_room_for_is_429(run: Run) -> None:
    run.shelf.refusal = "quota: tenant a has 9 bytes in runs with clients"
    async with run.begin() as client, httpx.AsyncClient() as other:
        for asking in (ask(client, "a"), client.responses.create(model="m", input="a")):
            with pytest.raises(openai.RateLimitError, match="9 bytes in runs with clients"):
                await asking
        answer = await other.post(
            f"{client.base_url}messages",
            json={"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "a"}]},
            headers={"x-api-key": client.api_key},
        )
    assert (answer.status_code, answer.json()["error"]["type"]) == (429, "rate_limit_error")


async def test_turns_that_cannot_be_read_are_503_until_they_can(run: Run) -> None:
    async with run.begin() as client:
        await ask(client, "a")
    run.shelf.is_away = True
    async with run.begin() as client:
        with pytest.raises(openai.InternalServerError, match="turns of this run cannot be read"):
            await ask(client, "a")
        run.shelf.is_away = False
        await ask(client, "a")
    assert len(run.engine.seeds) == 1


async def test_a_chat_goes_on_where_thoughts_and_ids_were_dropped(run: Run) -> None:
    async with run.begin() as client:
        [said] = await talk(client, "a")
        messages: Any = [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": f" {said} ", "reasoning_content": "hm"},
            {"role": "user", "content": "b"},
        ]
        await client.chat.completions.create(model="m", messages=messages)
    root, child = run.shelf.turns
    assert (root.parent_id, child.parent_id) == ("", root.id)


async def test_plain_prompts_go_on_from_the_tokens_that_they_begin_with(run: Run) -> None:
    async with run.begin() as client:
        first = await client.completions.create(model="m", prompt="a", max_tokens=3)
        text = f"a{first.choices[0].text}"
        await client.completions.create(model="m", prompt=f"{text} and", max_tokens=3)
    root, child = run.shelf.turns
    assert child.parent_id == root.id


async def test_a_payload_holds_what_follows_its_parent(run: Run) -> None:
    async with run.begin() as client:
        await talk(client, random.Random(1).randbytes(700).hex(), "b")
    root, child = (len(turn.payload) for turn in run.shelf.turns)
    assert child < root / 3


async def test_calls_of_the_workflow_itself_are_no_turns(run: Run) -> None:
    run.begin()
    await run.model.chat_async([{"role": "user", "content": "a"}])
    assert run.shelf.turns == []
    assert run.engine.seeds == [100]


async def test_the_address_is_the_same_in_the_next_attempt_and_gone_after_the_last(
    run: Run,
) -> None:
    run.begin()
    before = run.model.api_access.address
    run.begin()
    address, key = run.model.api_access.address, run.model.api_key
    assert address == before
    await run.model.close()
    del run.model
    gc.collect()
    async with httpx.AsyncClient() as client:
        headers = {"Authorization": f"Bearer {key}"}
        body = {"messages": [{"role": "user", "content": "a"}]}
        answer = await client.post(f"{address}/chat/completions", json=body, headers=headers)
    assert answer.status_code == 404


async def test_a_response_goes_on_from_a_stored_one(run: Run) -> None:
    async with run.begin() as client:
        first = await client.responses.create(model="m", input="a", instructions="be brief")
        left_out = await client.responses.create(model="m", input="b", store=False)
    async with run.begin() as client:
        await client.responses.create(model="m", input="c", previous_response_id=first.id)
        assert run.answers[-1].prompt_text == f"user:a\nassistant:{first.output_text}\nuser:c\n"
        for name in (left_out.id, "resp_0", f"resp_{'0' * 32}"):
            with pytest.raises(openai.BadRequestError, match="not kept here"):
                await client.responses.create(model="m", input="d", previous_response_id=name)
