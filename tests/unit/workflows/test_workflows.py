"""Workflows and the model they see."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.explorer.builders import ArithmeticEngine, CharacterTokenizer
from tests.unit.workflows.scripted import task_of
from trinity.config.schema.data import FormatConfig
from trinity.errors import UserError
from trinity.plugins import REWARDS, WORKFLOWS
from trinity.rewards.reward import BoundReward
from trinity.types import Experience, FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import (
    AttemptOver,
    Generation,
    GenerationDelta,
    ModelLimits,
    OnDelta,
    Scores,
)
from trinity.workflows.model import ModelWrapper
from trinity.workflows.model_access import ApiAccess
from trinity.workflows.task import Task

LIMITS = ModelLimits(max_model_len=200, max_prompt_tokens=120)
FORMAT = FormatConfig(prompt_key="question", response_key="answer")


def model(
    engine: ArithmeticEngine | None = None, limits: ModelLimits = LIMITS, max_tokens: int = 8
) -> ModelWrapper:
    return ModelWrapper(
        generator=engine or ArithmeticEngine(),
        tokenizer=CharacterTokenizer(),
        limits=limits,
        sampling=SamplingParams(max_tokens=max_tokens),
        weights=(4, 1),
        seed_of_call=lambda call: 100 + call,
    )


def seen_by(reward_name: str = "exact_match_reward") -> BoundReward:
    return BoundReward(REWARDS.get(reward_name), {}, reward_name)


def task(row: JsonObject | None = None, **changes: object) -> Task:
    usual = {"columns": FORMAT, "taskset": "sums", "reward": seen_by()}
    return task_of(row or {"question": "1+1=", "answer": "2"}, **{**usual, **changes})  # type: ignore[arg-type]


async def run(name: str, one: Task, on: ModelWrapper | None = None) -> list[Experience]:
    return await WORKFLOWS.get(name)(task=one, model=on or model()).run_async()


async def test_an_answer_is_one_experience_with_the_engines_tokens() -> None:
    (experience,) = await run("simple_workflow", task())
    body = experience.sequence
    assert body.prompt_text == "user:1+1=\n"
    assert bytes(body.tokens[: body.prompt_length].tolist()).decode() == body.prompt_text
    assert bytes(body.tokens[body.prompt_length :].tolist()).decode() == body.response_text
    assert body.action_mask.all() and len(body.action_mask) == body.response_length == 3
    assert experience.finish_reason is FinishReason.STOP


async def test_the_reward_is_the_sum_of_its_parts_and_each_part_a_metric() -> None:
    def parts(response: str) -> dict[str, float]:
        return {"a": 1.0, "b": 0.5 * len(response)}

    (experience,) = await run("simple_workflow", task(reward=BoundReward(parts, {}, "parts")))
    assert experience.reward == 2.5
    assert experience.reward_parts == {"a": 1.0, "b": 1.5}
    assert experience.metrics == {"a": 1.0, "b": 1.5}


async def test_a_reward_sees_truth_prompt_row_and_finish_reason() -> None:
    seen: dict[str, object] = {}

    def note(**known: object) -> dict[str, float]:
        seen.update(known)
        return {"score": 0.0}

    await run("simple_workflow", task(reward=BoundReward(note, {}, "note")))
    assert seen["truth"] == "2" and seen["prompt"] == "1+1="
    assert seen["task"] == {"question": "1+1=", "answer": "2"}
    assert seen["finish_reason"] is FinishReason.STOP and seen["response_length"] == 3


async def test_a_rows_system_prompt_goes_before_the_tasksets() -> None:
    own = FORMAT.model_copy(update={"system_prompt_key": "rules", "system_prompt": "be brief"})
    row: JsonObject = {"question": "1+1=", "answer": "2", "rules": "be polite"}
    (experience,) = await run("simple_workflow", task(row, columns=own))
    assert experience.prompt_text == "system:be polite\nuser:1+1=\n"


async def test_a_reply_prefix_is_continued_and_scored_with_the_answer() -> None:
    def note(response: str) -> dict[str, float]:
        return {"begins": float(response.startswith("It is "))}

    own = FormatConfig(prompt_key="question", response_key="answer", reply_prefix="It is ")
    reward = BoundReward(note, {}, "note")
    for one in (
        task(workflow_args={"reply_prefix": "It is "}, reward=reward),
        task(columns=own, reward=reward),
    ):
        (experience,) = await run("simple_workflow", one)
        assert "assistant:It is " in experience.prompt_text
        assert experience.reward == 1.0


async def test_math_asks_for_tags_and_brings_its_own_reward() -> None:
    (experience,) = await run(
        "math_workflow",
        task(reward=None),
        model(limits=replace(LIMITS, max_prompt_tokens=2000, max_model_len=3000)),
    )
    assert "<think>" in experience.prompt_text
    assert set(experience.reward_parts) == {"accuracy", "format_score"}


async def test_simple_workflow_without_a_reward_says_what_to_set() -> None:
    with pytest.raises(UserError, match=r"'sums'.*default_reward_fn_type"):
        await run("simple_workflow", task(reward=None))


async def test_unknown_workflow_args_are_named() -> None:
    with pytest.raises(UserError, match="SimpleWorkflow knows no workflow_args reply_suffix"):
        await run("simple_workflow", task(workflow_args={"reply_suffix": "x"}))


async def test_a_response_cut_by_the_limit_says_so() -> None:
    (experience,) = await run("simple_workflow", task(), model(max_tokens=2))
    assert experience.finish_reason is FinishReason.LENGTH
    assert experience.sequence.response_length == 2


async def test_a_prompt_that_is_too_long_becomes_a_masked_dummy_with_reward_zero() -> None:
    limits = replace(LIMITS, max_prompt_tokens=5)
    (experience,) = await run("simple_workflow", task(), model(limits=limits))
    body = experience.sequence
    assert bytes(body.tokens.tolist()) == b"user:1"
    assert (body.prompt_length, body.response_length) == (5, 1)
    assert not body.action_mask.any() and body.rollout_logprobs.tolist() == [0.0]
    assert experience.finish_reason is FinishReason.PROMPT_TRUNCATED
    assert experience.reward == 0.0 and experience.reward_parts == {"accuracy": 0.0}


async def test_a_prompt_that_is_too_long_fails_when_truncation_is_off() -> None:
    limits = replace(LIMITS, max_prompt_tokens=5, truncate_prompts=False)
    with pytest.raises(UserError, match=r"has 10 tokens, model\.max_prompt_tokens is 5"):
        await run("simple_workflow", task(), model(limits=limits))


async def test_a_response_never_exceeds_the_models_length() -> None:
    limits = ModelLimits(max_model_len=12, max_prompt_tokens=11)
    (experience,) = await run("simple_workflow", task(), model(limits=limits))
    assert len(experience.sequence.tokens) == 12
    assert experience.sampling is not None and experience.sampling.max_tokens == 2


async def test_each_call_of_a_run_has_its_own_seed_and_the_same_again() -> None:
    async def seeds() -> list[int]:
        engine = ArithmeticEngine()
        chat = model(engine)
        await chat.chat_async([{"role": "user", "content": "a"}], n=2)
        await chat.generate_async(["b"])
        return engine.seeds

    assert await seeds() == await seeds() == [100, 101, 102]


async def test_a_call_may_sample_otherwise_than_its_taskset() -> None:
    (experience,) = await model().chat_async(
        [{"role": "user", "content": "a"}], temperature=0.0, max_tokens=1
    )
    assert experience.sampling == SamplingParams(temperature=0.0, max_tokens=1, seed=100)


async def test_a_call_may_penalise_and_stop_and_ask_for_the_likeliest_tokens() -> None:
    engine = ArithmeticEngine()
    (whole,) = await model(engine).chat_async([{"role": "user", "content": "a"}])
    second = whole.response_text[1]
    (experience,) = await model(engine).chat_async(
        [{"role": "user", "content": "a"}], repetition_penalty=1.2, stop=[second], logprobs=2
    )
    assert experience.sampling == SamplingParams(
        max_tokens=8, repetition_penalty=1.2, stop=(second,), logprobs=2, seed=100
    )
    assert experience.response_text == whole.response_text[0]
    assert experience.sequence.response_length == 2
    assert experience.arrays["likeliest_tokens"].data.shape == (2, 2)
    assert experience.arrays["likeliest_logprobs"].data.tolist() == [[-0.5, -1.5], [-0.75, -1.75]]
    assert not whole.arrays


@pytest.mark.parametrize("stop", ["", ["a", ""]])
async def test_what_to_stop_at_is_no_empty_text(stop: str | list[str]) -> None:
    with pytest.raises(UserError, match="`stop` takes a list of texts that are not empty"):
        await model().chat_async([{"role": "user", "content": "a"}], stop=stop)


async def test_a_thread_may_use_the_model() -> None:
    chat = model()
    (inside,) = await asyncio.to_thread(chat.chat, [{"role": "user", "content": "a"}])
    (outside,) = await model().chat_async([{"role": "user", "content": "a"}])
    assert np.array_equal(inside.sequence.tokens, outside.sequence.tokens)


async def test_a_model_whose_attempt_is_over_ends_what_goes_on_and_refuses_the_rest() -> None:
    engine = ArithmeticEngine(gate=asyncio.Event())
    chat = model(engine)
    pending = asyncio.create_task(chat.chat_async([{"role": "user", "content": "a"}], n=2))
    in_thread = asyncio.create_task(asyncio.to_thread(chat.generate, ["b"]))
    while engine.num_active < 3:  # noqa: ASYNC110 one of the three comes from a thread
        await asyncio.sleep(0)
    await chat.close()
    assert (engine.num_active, engine.num_aborted) == (0, 3)
    for call in (pending, in_thread):
        with pytest.raises(asyncio.CancelledError):
            await call
    with pytest.raises(AttemptOver):
        await chat.chat_async([{"role": "user", "content": "c"}])
    with pytest.raises(AttemptOver):
        await asyncio.to_thread(chat.chat, [{"role": "user", "content": "d"}])
    assert len(engine.seeds) == 3


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, " is null, no text"),
        (["a"], ": message 0 has no `role`"),
        ({}, " is a dict, no text"),
    ],
)
def test_a_row_whose_question_is_no_text_is_not_asked(value: JsonObject, said: str) -> None:
    odd = task({"question": value, "answer": "2"}, index=7)
    with pytest.raises(UserError, match=rf"'sums', row 7 \(from 0\): column 'question'{said}"):
        _ = odd.question
    assert task({"question": 5, "answer": "5"}).question == "5"


async def test_answers_to_several_prompts_are_numbered_in_their_order() -> None:
    told: dict[int, list[int]] = {}

    def note(index: int, delta: GenerationDelta) -> None:
        told.setdefault(index, []).extend(delta.token_ids)

    made = await model(Streaming()).generate_async(["a", "bb"], n=2, on_delta=note)
    assert [one.prompt_text for one in made] == ["a", "a", "bb", "bb"]
    assert {index: len(tokens) for index, tokens in told.items()} == {0: 1, 1: 1, 2: 2, 3: 2}


class Streaming(ArithmeticEngine):
    """Tells of as many tokens as the prompt has."""

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        assert on_delta is not None
        on_delta(GenerationDelta(token_ids=prompt_token_ids, logprobs=[]))
        return await super().generate(prompt_token_ids, sampling, min_tokens=min_tokens)


async def test_a_prompt_of_the_largest_length_is_answered_with_what_is_left() -> None:
    room = ModelLimits(max_model_len=11, max_prompt_tokens=10)
    (experience,) = await run("simple_workflow", task(), model(limits=room))
    assert experience.sequence.response_length == 1
    assert experience.finish_reason is FinishReason.LENGTH
    with pytest.raises(UserError, match=r"10 tokens leaves no room .* model\.max_model_len 10"):
        await run("simple_workflow", task(), model(limits=replace(room, max_model_len=10)))


async def test_a_prompt_that_is_too_long_is_worth_nothing_before_it_is_scored() -> None:
    chat = model(limits=replace(LIMITS, max_prompt_tokens=5))
    (experience,) = await chat.chat_async([{"role": "user", "content": "1+1="}])
    assert experience.reward == 0.0


@pytest.mark.parametrize(
    ("tokens", "num_scores"),
    [([], None), ([1], 0), ([1, 2], 1), ([1] * 200, 199), ([1] * 201, None)],
)
async def test_tokens_are_scored_each_after_those_before_it(
    tokens: list[int], num_scores: int | None
) -> None:
    chat = model(Scoring())
    if num_scores is None:
        with pytest.raises(UserError, match=f"given for 1 to 200 tokens .* not for {len(tokens)}"):
            await chat.logprobs_async(tokens)
        return
    assert (await chat.logprobs_async(tokens, 1.0)).tolist() == [-0.5] * num_scores
    with pytest.raises(UserError, match=r"those at temperature 1, not 0\.5"):
        await chat.logprobs_async(tokens, 0.5)


class Scoring(ArithmeticEngine):
    """Finds every token equally likely."""

    async def score(self, token_ids: list[int], *, num_likeliest: int = 0) -> Scores:
        assert len(token_ids) > 1
        return Scores(logprobs=[-0.5] * (len(token_ids) - 1))


async def test_a_client_of_the_models_address_asks_once_and_waits_as_long_as_it_takes() -> None:
    chat = model()
    assert not chat.has_api
    with pytest.raises(UserError, match="enable_openai_api"):
        chat.get_openai_client()
    chat.enable_api(ApiAccess(address="http://127.0.0.1:9/v1", key="secret", model_path="here"))
    assert chat.has_api
    for client in (chat.get_openai_client(), chat.get_openai_async_client()):
        assert (client.max_retries, client.timeout) == (0, None)
        assert (str(client.base_url), client.api_key) == ("http://127.0.0.1:9/v1/", "secret")
        assert client.model_path == "here"
