"""Transcripts become samples with the engine's very tokens."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from tests.support.said import assert_as_said
from tests.unit.workflows.scripted import ScriptedEngine, scripted_model, task_of
from trinity.data.codec import check_experience
from trinity.errors import UserError
from trinity.types import Experience, JsonObject, RoleSpan
from trinity.workflows.experience_builder import SamplingOverrides, distribution_of
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message
from trinity.workflows.multi_turn import MultiTurnWorkflow

ROW: JsonObject = {"question": "guess", "answer": "7"}


class Guesses(MultiTurnWorkflow):
    """Three guesses, each answered by a hint."""

    is_async = True
    messages: list[Message]
    sampling: dict[str, int] = {}  # noqa: RUF012 a test sets it on an instance

    async def run_async(self) -> list[Experience]:
        self.messages = [{"role": "user", "content": self.task.task_desc}]
        for number in range(3):
            (turn,) = await self.model.chat_async(self.messages, **self.sampling)  # type: ignore[arg-type]
            self.messages.append({"role": "assistant", "content": turn.response_text})
            self.messages.append({"role": "user", "content": f"hint {number}"})
        return self.experiences(self.messages, reward=0.5, info={"tries": 3, "who": "me"})


def guesses(*, forgets: bool = False) -> Guesses:
    model = scripted_model(ScriptedEngine(["5", "6", "77"]), forgets=forgets)
    return Guesses(task=task_of(ROW), model=model)


def trained(sample: Experience) -> str:
    body = sample.sequence
    return bytes(body.tokens[body.prompt_length :][body.action_mask].tolist()).decode()


async def test_turns_that_go_on_from_one_another_are_one_sample() -> None:
    (sample,) = await guesses().run_async()
    body = sample.sequence
    text = "<user>guess\n<assistant>5\n<user>hint 0\n<assistant>6\n<user>hint 1\n<assistant>77\n"
    assert bytes(body.tokens.tolist()).decode() == text
    assert trained(sample) == "5\n6\n77\n"
    assert_as_said(sample)
    assert np.array_equal(body.rollout_logprobs != 0, body.action_mask)
    assert (sample.reward, sample.metrics) == (0.5, {"tries": 3.0})
    (span,) = sample.version_spans
    assert (span.start, span.end, span.version) == (0, body.response_length, 4)
    check_experience(sample)


async def test_log_probabilities_that_are_shifted_in_a_joined_sample_are_found() -> None:
    """The control of the comparison above."""
    (sample,) = await guesses().run_async()
    logprobs = np.roll(sample.sequence.rollout_logprobs, 1)
    shifted = replace(sample.sequence, rollout_logprobs=logprobs)
    with pytest.raises(AssertionError, match="token 0 of the response"):
        assert_as_said(replace(sample, body=shifted))


async def test_a_joined_sample_keeps_the_roles_of_its_messages() -> None:
    """Those of the last prompt, which has all earlier turns; here the template knows one."""
    workflow = guesses()
    encode = workflow.model.tokenizer.encode_chat

    def with_roles(messages: list[Message], tools: list[JsonObject] | None = None) -> Prompt:
        prompt = encode(messages, tools or [])
        whole = RoleSpan(role=f"{len(messages)} messages", start=0, end=len(prompt.token_ids))
        return replace(prompt, role_spans=(whole,))

    workflow.model.tokenizer.encode_chat = with_roles  # type: ignore[method-assign, assignment]
    (sample,) = await workflow.run_async()
    [span] = sample.sequence.role_spans
    assert span.role == "5 messages"
    assert bytes(sample.sequence.tokens[: span.end].tolist()).endswith(b"<assistant>")


async def test_turns_whose_template_forgets_answers_are_samples_of_their_own() -> None:
    workflow = guesses(forgets=True)
    samples = await workflow.run_async()
    assert [one.response_text for one in samples] == ["5", "6", "77"]
    assert [one.reward for one in samples] == [0.5] * 3
    for num_turns in (3, 2):
        told = workflow.messages[: 2 * num_turns]
        sample = await workflow.process_messages_to_experience_async(told, 1.0)
        assert len(sample.further) == num_turns - 1


class Tries(MultiTurnWorkflow):
    """Three tries, each sampled in its own way."""

    is_async = True
    samplings: tuple[SamplingOverrides, ...] = ({}, {}, {})

    async def run_async(self) -> list[Experience]:
        messages: list[Message] = [{"role": "user", "content": self.task.task_desc}]
        for sampling in self.samplings:
            (turn,) = await self.model.chat_async(messages, **sampling)
            messages.append({"role": "assistant", "content": turn.response_text})
            messages.append({"role": "user", "content": "on"})
        return self.experiences(messages, reward=0.5)


async def tried(*samplings: SamplingOverrides) -> list[Experience]:
    engine = ScriptedEngine(["5", "6", "7"])
    workflow = Tries(task=task_of(ROW), model=scripted_model(engine))
    workflow.samplings = samplings
    return await workflow.run_async()


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.2},
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"top_k": 5},
        {"top_k": 1},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"json_schema": '{"type": "integer"}'},
    ],
)
async def test_turns_drawn_from_different_distributions_are_samples_of_their_own(
    other: SamplingOverrides,
) -> None:
    first, second, third = await tried({}, other, {})
    assert [trained(sample) for sample in (first, second, third)] == ["5\n", "6\n", "7\n"]
    (name, value), *_ = other.items()
    assert getattr(second.sampling, name) == value
    assert first.sampling is not None and third.sampling is not None
    assert distribution_of(first.sampling) == distribution_of(third.sampling)
    two = await tried({}, {}, other)
    assert [trained(sample) for sample in two] == ["5\n6\n", "7\n"]


@pytest.mark.parametrize(
    "other",
    [{"max_tokens": 7}, {"stop": ["x"]}, {"top_k": 0}, {"top_p": 1.0}, {"min_tokens": 1}],
)
async def test_turns_that_differ_in_what_leaves_the_distribution_are_one_sample(
    other: SamplingOverrides,
) -> None:
    (sample,) = await tried({}, other, {})
    assert trained(sample) == "5\n6\n7\n"


@pytest.mark.parametrize("value", ["0.5", float("nan"), float("inf"), -1.0])
async def test_a_temperature_that_nothing_can_be_drawn_at_is_refused(value: float) -> None:
    with pytest.raises(UserError, match="`temperature` takes a number from 0 on"):
        await tried({}, {"temperature": value}, {})


async def test_a_temperature_may_be_a_number_of_numpy() -> None:
    (sample,) = await tried({}, {"temperature": cast("float", np.float32(1.0))}, {})
    assert trained(sample) == "5\n6\n7\n"
    assert sample.sampling is not None
    assert type(sample.sampling.temperature) is float


async def test_only_what_the_model_answered_is_trained() -> None:
    workflow = guesses()
    await workflow.run_async()
    quoted: list[Message] = [
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": "8"},
        *workflow.messages[:2],
    ]
    (sample,) = workflow.experiences(quoted, 1.0)
    assert (sample.response_text, sample.reward) == ("5", 1.0)
    with pytest.raises(UserError, match="none of the assistant's messages"):
        workflow.experiences(quoted[:2], 1.0)


@pytest.mark.parametrize("said", ["5", "6", "77"])
async def test_a_quotation_that_is_like_a_later_answer_takes_the_place_of_none(said: str) -> None:
    workflow = guesses()
    await workflow.run_async()
    quoted: list[Message] = [
        {"role": "user", "content": "an example"},
        {"role": "assistant", "content": said},
        *workflow.messages,
    ]
    (sample,) = workflow.experiences(quoted, reward=1.0)
    assert trained(sample) == "5\n6\n77\n"


async def test_of_equal_answers_the_one_to_these_very_messages_is_taken() -> None:
    model = scripted_model(ScriptedEngine(["5", "6", "5"]))
    workflow = Guesses(task=task_of(ROW), model=model)
    await workflow.run_async()
    kept = [*workflow.messages[:1], *workflow.messages[-2:]]
    (sample,) = workflow.experiences(kept, reward=1.0)
    assert (sample.prompt_text.count("<user>"), trained(sample)) == (1, "5\n")
    kept[0] = {"role": "user", "content": "guess, and say no more"}
    (sample,) = workflow.experiences(kept, reward=1.0)
    assert (sample.prompt_text.count("<user>"), trained(sample)) == (3, "5\n")


async def test_a_conversation_that_was_cut_short_says_so() -> None:
    workflow = guesses()
    await workflow.run_async()
    sample = await workflow.process_messages_to_experience_async(
        workflow.messages, 1.0, truncate_status="response_truncated"
    )
    assert (sample.reward, sample.truncate_status) == (1.0, "response_truncated")


async def test_arrays_go_along_with_the_tokens_they_belong_to() -> None:
    workflow = guesses()
    workflow.sampling = {"logprobs": 1}
    (sample,) = await workflow.run_async()
    tokens = sample.arrays["likeliest_tokens"].data[:, 0]
    mask = sample.sequence.action_mask
    response = sample.sequence.tokens[sample.sequence.prompt_length :]
    assert np.array_equal(tokens[mask], response[mask])
    assert not tokens[~mask].any()


async def test_turns_with_arrays_of_different_widths_are_samples_of_their_own() -> None:
    samples = await tried({"logprobs": 1}, {"logprobs": 2}, {"logprobs": 2})
    assert [trained(sample) for sample in samples] == ["5\n", "6\n7\n"]
    widths = [sample.arrays["likeliest_tokens"].data.shape for sample in samples]
    assert widths == [(2, 1), (samples[1].sequence.response_length, 2)]


async def test_a_prompt_that_is_too_long_leaves_the_group_whole() -> None:
    model = scripted_model(ScriptedEngine([]), max_prompt_tokens=5)
    (sample,) = await Guesses(task=task_of(ROW), model=model).run_async()
    assert not sample.sequence.action_mask.any()
