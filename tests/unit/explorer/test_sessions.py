"""Calls over the address of a run are turns of its session: stored first, and given again."""

import asyncio
import gc
import random
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from services.explorer.openai_api import session as sessions
from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.session import Session
from services.explorer.types import CommitOutcome, ResultReport
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from tests.unit.workflows.test_sessions import trained_of
from trinity.api.v1.experience_pb2 import SessionTurn
from trinity.errors import Unavailable
from trinity.types import Experience, SamplingParams
from trinity.workflows.answers import TurnNode, close_session
from trinity.workflows.generation import Generation, ModelLimits
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turn_codec import encode_payload

SESSION = "0f4a1f6e-6a4b-4d0e-9a53-6d6e7e1d3a10"
COMMITTED = ResultReport(CommitOutcome.COMMITTED)
WAIT_SECONDS = 60.0


@dataclass
class Shelf:
    """A store that outlasts attempts; while it is `held`, nothing is reported."""

    turns: list[SessionTurn] = field(default_factory=list)
    held: bool = False
    refusal: str = ""
    is_away: bool = False
    sent: list[tuple[SessionTurn, "asyncio.Future[ResultReport]"]] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def load(self) -> list[SessionTurn]:
        if self.is_away:
            raise Unavailable("it does not answer")
        return self.turns

    def store(self, turn: TurnNode) -> "asyncio.Future[ResultReport]":
        report: asyncio.Future[ResultReport] = asyncio.get_running_loop().create_future()
        message = SessionTurn(
            id=turn.id,
            parent_id="" if turn.parent is None else turn.parent.id,
            prompt_sha256=turn.prompt_sha256,
            ordinal=turn.ordinal,
            payload=encode_payload(turn),
        )
        self.sent.append((message, report))
        self.arrived.set()
        if not self.held:
            self.report()
        return report

    def report(self) -> None:
        for message, report in self.sent:
            if self.refusal:
                report.set_result(ResultReport(CommitOutcome.REJECTED, self.refusal))
            else:
                self.turns.append(message)
                report.set_result(COMMITTED)
        self.sent.clear()


def seed_of(parent: bytes, prompt: bytes, ordinal: int) -> int:
    return int.from_bytes(parent[:2] + prompt[:2], "big") + ordinal


@dataclass
class Run:
    """A run with any number of attempts, one after the other."""

    api: AttemptApiServer
    shelf: Shelf
    engine: ArithmeticEngine = field(default_factory=ArithmeticEngine)
    id: str = SESSION
    secret: str = "s" * 32
    model: ModelWrapper = field(init=False)

    def begin(self) -> openai.AsyncOpenAI:
        """Another attempt, and its client."""
        self.model = ModelWrapper(
            generator=self.engine,
            tokenizer=CharacterTokenizer(),
            limits=ModelLimits(max_model_len=2000, max_prompt_tokens=1900),
            sampling=SamplingParams(max_tokens=8),
            weights=(4, 1),
            seed_of_call=lambda call: 100 + call,
            keeps_history=True,
        )
        session = Session(session_id=self.id, store=self.shelf, seed_of_turn=seed_of)
        self.model.enable_api(self.api.register_attempt(self.model, session, secret=self.secret))
        return self.model.get_openai_async_client()

    @property
    def answers(self) -> list[Experience]:
        return self.model.extract_experience_from_history(clear_history=False)


@pytest.fixture
async def run(api: AttemptApiServer) -> AsyncIterator[Run]:
    yield Run(api, Shelf())


async def ask(client: openai.AsyncOpenAI, *chat: str, **options: Any) -> Any:
    """Asks a chat whose messages are of the user and the assistant by turns."""
    roles = ("user", "assistant")
    messages: Any = [{"role": roles[i % 2], "content": text} for i, text in enumerate(chat)]
    return await client.chat.completions.create(model="m", messages=messages, **options)


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


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


async def test_a_request_that_names_another_run_reaches_its_own(run: Run) -> None:
    other = Run(run.api, Shelf(), id=str(uuid.UUID(int=7)), secret="t" * 32)
    async with run.begin() as client, other.begin() as its:
        theirs = await its.responses.create(model="m", input="theirs")
        names: Any = {
            "extra_headers": {
                "X-Claude-Code-Session-Id": other.id,
                "session-id": other.secret,
                "thread-id": theirs.id,
            },
            "extra_body": {
                "prompt_cache_key": other.id,
                "metadata": {"user_id": f'{{"session_id": "{other.id}"}}'},
                "session_id": other.secret,
            },
        }
        await ask(client, "a", **names)
        own = await client.responses.create(model="m", input="b", **names)
        for name in (theirs.id, theirs.id.replace("resp_", ""), other.id, other.secret):
            with pytest.raises(openai.BadRequestError, match="not kept here"):
                await client.responses.create(model="m", input="c", previous_response_id=name)
        await client.responses.create(model="m", input="d", previous_response_id=own.id)
    assert [turn.answer.prompt_text for turn in other.model.session_turns] == ["user:theirs\n"]
    assert len(run.model.session_turns) == len(run.shelf.turns) == 3


@dataclass
class Logged(ArithmeticEngine):
    """Writes down what it drew: each token, after all tokens before it."""

    drawn: Counter[tuple[int, ...]] = field(default_factory=Counter)

    async def generate(
        self, prompt_token_ids: list[int], sampling: SamplingParams, **given: Any
    ) -> Generation:
        made = await super().generate(prompt_token_ids, sampling, **given)
        whole = (*prompt_token_ids, *made.token_ids)
        self.drawn.update(whole[:end] for end in range(len(prompt_token_ids) + 1, len(whole) + 1))
        return made


@pytest.mark.parametrize("seed", range(4))
async def test_what_an_agent_invents_is_context_and_what_was_drawn_is_trained_once(
    run: Run, seed: int
) -> None:
    """It tells answers that the model never gave, and alters, moves and begins others."""
    run.engine, chance = Logged(), random.Random(seed)
    chats: list[list[str]] = [["a"]]
    async with run.begin() as client:
        for number in range(60):
            chat = list(chance.choice(chats))
            match chance.choice(("go on", "invent", "alter", "move", "begin", "text", "tokens")):
                case "invent":
                    chat += [chance.choice(("xyz", "4", "")), f"b{number}"]
                case "alter" if len(chat) > 2:
                    chat[1] = chance.choice((f"{chat[1]}x", chat[1][:-1], f" {chat[1]} "))
                case "move" if len(chat) > 2:
                    chat[1] = chance.choice([own[1] for own in chats if len(own) > 2])
                case "begin":
                    chat.append(chance.choice(("x", "xy")))
                case "text" | "tokens" as kind:
                    await _go_on_in_tokens(client, chance, run, as_text=kind == "text")
                    continue
            said = text_of(await ask(client, *chat))
            chats.append([*chat, said, f"c{number}"] if len(chat) % 2 else [*chat[:-1]])
    samples = close_session(run.model.session_turns).samples
    assert Counter(trained_of(samples)) == run.engine.drawn


async def _go_on_in_tokens(
    client: openai.AsyncOpenAI, chance: random.Random, run: Run, *, as_text: bool
) -> None:
    """Goes on from the tokens of an earlier answer, or from some that differ at one place."""
    turns = run.model.session_turns
    tokens = chance.choice(turns).answer.sequence.tokens.tolist() if turns else [97]
    if chance.random() < 0.5:
        tokens[chance.randrange(len(tokens))] = 98
    if as_text:
        prompt = bytes(tokens).decode()
        await client.completions.create(model="m", prompt=prompt, max_tokens=4)
        return
    body = {"token_ids": tokens, "sampling_params": {"max_tokens": 4}}
    await client.post("../inference/v1/generate", body=body, cast_to=object)
