"""Completions of plain text and of tokens over HTTP, and how likely given tokens are."""

import asyncio
from typing import Any

import openai
import pytest

from tests.support.said import said_of
from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from tests.unit.explorer.offering import QUESTION, Offered
from trinity.errors import UserError
from trinity.types import Experience, SamplingParams
from trinity.workflows.generation import AttemptOver, ModelLimits
from trinity.workflows.model import ModelWrapper

AB = [ord("a"), ord("b")]


def response_of(experience: Experience) -> list[int]:
    sequence = experience.sequence
    tokens: list[int] = sequence.tokens[sequence.prompt_length :].tolist()
    return tokens


async def test_a_completion_is_recorded_as_a_call_of_the_run(offered: Offered) -> None:
    async with offered.client as client:
        answer = await client.completions.create(
            model="any",
            prompt=["ab", "c"],
            n=2,
            max_tokens=5,
            temperature=0.5,
            logprobs=0,
            extra_body={"return_token_ids": True},
        )
    recorded = offered.model.extract_experience_from_history()
    assert [one.sequence.prompt_text for one in recorded] == ["ab", "ab", "c", "c"]
    assert [one.sampling and one.sampling.seed for one in recorded] == [100, 101, 102, 103]
    assert {one.sampling.max_tokens for one in recorded if one.sampling} == {5}
    assert all(one.sequence.action_mask.all() for one in recorded)
    assert [choice.text for choice in answer.choices] == [one.response_text for one in recorded]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for choice, one in zip(answer.choices, recorded, strict=True):
        extra = choice.model_extra or {}
        assert extra["token_ids"] == response_of(one)
        assert bytes(extra["prompt_token_ids"]).decode() == one.sequence.prompt_text
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == one.sequence.rollout_logprobs.tolist()
        assert choice.logprobs.tokens == list(one.response_text)
        assert choice.logprobs.text_offset == [0, 1, 2]
    assert (answer.object, answer.choices[0].finish_reason) == ("text_completion", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)


async def test_tokens_go_on_as_the_text_that_they_are(offered: Offered) -> None:
    (direct,) = await offered.model.generate_async([AB])
    async with offered.client as client:
        answer = await client.completions.create(model="any", prompt=[AB, AB], seed=3)
    first, second = offered.model.extract_experience_from_history()[1:]
    assert [one.sequence.tokens[:2].tolist() for one in (direct, first, second)] == [AB] * 3
    assert first.sequence.prompt_text == "ab"
    assert [choice.text for choice in answer.choices] == [first.response_text, second.response_text]


async def test_a_stream_of_completions_tells_the_same_as_one_piece(offered: Offered) -> None:
    async with offered.client as client:
        stream = await client.completions.create(
            model="any",
            prompt=["ab", "c"],
            n=2,
            logprobs=1,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"return_token_ids": True},
        )
        chunks = [chunk async for chunk in stream]
    recorded = offered.model.extract_experience_from_history()
    for index, one in enumerate(recorded):
        own = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert "".join(choice.text for choice in own) == one.response_text
        assert [choice.finish_reason for choice in own if choice.finish_reason] == ["stop"]
        told = [choice.logprobs for choice in own if choice.logprobs]
        assert [n for piece in told for n in piece.token_logprobs or ()] == said_of(one)
        assert [n for piece in told for n in piece.text_offset or ()] == [0, 1, 2]
        ids = [token for choice in own for token in (choice.model_extra or {})["token_ids"]]
        assert ids == response_of(one)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 12)


async def test_given_text_is_looked_at_without_a_word_added(offered: Offered) -> None:
    async with offered.client as client:
        prompts: Any = ["ab", AB]
        answer = await client.completions.create(
            model="any", prompt=prompts, max_tokens=0, echo=True, logprobs=1
        )
    for choice in answer.choices:
        assert choice.text == "ab"
        assert choice.logprobs is not None
        assert choice.logprobs.tokens == ["a", "b"]
        found: list[Any] = choice.logprobs.token_logprobs or []
        assert found == [None, pytest.approx(-0.98)]
        assert choice.logprobs.top_logprobs == [None, {"a": -0.25, "b": pytest.approx(-0.98)}]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 0)
    assert offered.model.extract_experience_from_history() == []
    assert offered.engine.seeds == []


async def test_an_echo_stands_before_the_answer_with_its_log_probabilities(
    offered: Offered,
) -> None:
    async with offered.client as client:
        answer = await client.completions.create(model="any", prompt="ab", echo=True, logprobs=0)
    (one,) = offered.model.extract_experience_from_history()
    (choice,) = answer.choices
    assert choice.text == "ab" + one.response_text
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs == [None, pytest.approx(-0.98), *said_of(one)]
    assert choice.logprobs.text_offset == [0, 1, 2, 3, 4]
    assert one.sequence.rollout_logprobs.tolist() == said_of(one)


async def test_a_prompts_log_probabilities_come_as_vllms_server_has_them(offered: Offered) -> None:
    async with offered.client as client:
        text = await client.completions.create(
            model="any", prompt="ab", extra_body={"prompt_logprobs": 1}
        )
        chat = await client.chat.completions.create(
            model="any",
            messages=QUESTION,  # type: ignore[arg-type]
            extra_body={"prompt_logprobs": 0, "return_token_ids": True},
        )
    b = str(ord("b"))
    told = (text.choices[0].model_extra or {})["prompt_logprobs"]
    assert told[0] is None
    assert told[1][b] == {"logprob": pytest.approx(-0.98), "decoded_token": "b"}
    assert told[1][str(ord("a"))]["logprob"] == -0.25
    extra = chat.model_extra or {}
    asked, known = extra["prompt_token_ids"], extra["prompt_logprobs"]
    assert [list(one) for one in known[1:]] == [[str(token)] for token in asked[1:]]
    assert len(offered.model.extract_experience_from_history()) == 2


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"prompt": None}, "`prompt`"),
        ({"prompt": []}, "`prompt`"),
        ({"prompt": ["a", 3]}, r"`prompt\[1\]`"),
        ({"prompt": [[1, -1]]}, r"`prompt\[0\]`"),
        ({"prompt": [1 << 40]}, r"`prompt\[0\]`"),
        ({"prompt": [True]}, r"`prompt\[0\]`"),
        ({"prompt": ""}, "a prompt has no tokens"),
        ({"suffix": "b"}, "`suffix`"),
        ({"logit_bias": {"5": 1}}, "`logit_bias`"),
        ({"response_format": {"type": "grammar"}}, r"`response_format\.type`"),
        ({"guided_choice": ["a", "b"]}, "`guided_choice`"),
        ({"best_of": 3}, "`best_of`"),
        ({"max_tokens": 0}, "`max_tokens`"),
        ({"max_tokens": -1}, "`max_tokens`"),
        ({"logprobs": 21}, "`logprobs`"),
        ({"logprobs": True}, "`logprobs`"),
        ({"echo": True, "stream": True}, "`echo`"),
        ({"prompt_logprobs": 1, "stream": True}, "`prompt_logprobs`"),
        ({"prompt_logprobs": -1}, "`prompt_logprobs`"),
        ({"n": 129}, "`n`"),
        ({"prompt": ["a"] * 9, "n": 128}, "`n`"),
    ],
)
async def test_what_is_not_understood_is_refused_by_name(
    offered: Offered, asked: dict[str, object], named: str
) -> None:
    async with offered.client as client:
        with pytest.raises(openai.BadRequestError, match=named):
            body = {"model": "any", "prompt": "a", **asked}
            await client.post("/completions", body=body, cast_to=object)
    assert offered.model.extract_experience_from_history() == []


async def test_log_probabilities_of_given_tokens_are_one_fewer_than_the_tokens(
    offered: Offered,
) -> None:
    found = await offered.model.logprobs_async([97, 98, 99])
    assert found.tolist() == pytest.approx([-0.98, -0.99])
    assert (await offered.model.logprobs_async([97], temperature=1.0)).tolist() == []
    in_thread = await asyncio.to_thread(offered.model.logprobs, AB)
    assert in_thread.tolist() == pytest.approx([-0.98])
    with pytest.raises(UserError, match=r"temperature 1, not 0\.5"):
        await offered.model.logprobs_async(AB, temperature=0.5)
    for tokens in ([], [97] * 201):
        with pytest.raises(UserError, match="1 to 200 tokens"):
            await offered.model.logprobs_async(tokens)
    assert offered.model.extract_experience_from_history() == []


async def test_who_asks_about_a_prompt_when_the_attempt_ends_is_told_so(offered: Offered) -> None:
    offered.engine.gate = asyncio.Event()
    async with offered.client as client:
        call = client.completions.create(
            model="m", prompt="ab", max_tokens=0, echo=True, logprobs=0
        )
        going = asyncio.ensure_future(call)
        async with asyncio.timeout(30):
            while not offered.engine.num_scored:  # noqa: ASYNC110 - the engine tells nobody
                await asyncio.sleep(0.01)
        await offered.model.close()
        with pytest.raises(openai.APIStatusError, match="is over"):
            await going


async def test_an_attempt_that_is_over_tells_no_log_probabilities() -> None:
    engine = ArithmeticEngine(gate=asyncio.Event())
    model = ModelWrapper(
        generator=engine,
        tokenizer=CharacterTokenizer(),
        limits=ModelLimits(max_model_len=200, max_prompt_tokens=120),
        sampling=SamplingParams(),
        weights=(0, 0),
        seed_of_call=lambda call: call,
    )
    going = asyncio.ensure_future(model.logprobs_async(AB))
    async with asyncio.timeout(30):
        while not engine.num_scored:  # noqa: ASYNC110 - the engine tells nobody
            await asyncio.sleep(0.01)
    await model.close()
    with pytest.raises(asyncio.CancelledError):
        await going
    with pytest.raises(AttemptOver):
        await model.logprobs_async(AB)
