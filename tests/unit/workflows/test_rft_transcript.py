"""Transcripts of workflows that were written for Trinity-RFT."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.unit.workflows.scripted import END, ScriptedEngine, TurnTokenizer, scripted_model
from trinity.errors import UserError
from trinity.rft.common.experience import Experience
from trinity.rft.common.models.model import ModelWrapper
from trinity.types import JsonObject
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

pytest.importorskip("torch", reason="Trinity-RFT's experiences hold its tensors")
Messages = list[dict[str, str]]


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


async def converted(
    use: Callable[[ModelWrapper], Experience], answers: list[str], *, forgets: bool = False
) -> Experience:
    """What `use` makes of a model, in a thread as every workflow."""
    engine = ScriptedEngine(answers)
    model = scripted_model(engine, forgets=forgets, model_path="m")
    model.keep_history()
    return await asyncio.to_thread(use, model)


def played(model: ModelWrapper, rounds: int = 2) -> Messages:
    messages = [said("user", "go")]
    for number in range(rounds):
        answer = model.chat(messages)[0]
        messages += [said("assistant", answer.response_text), said("user", f"hint {number}")]
    return messages


async def test_turns_are_found_by_what_was_asked_and_answered() -> None:
    def use(model: ModelWrapper) -> Experience:
        first, second = played(model), played(model)
        assert first == second
        return model.convert_messages_to_experience(second)

    made = await converted(use, ["left", "right", "left", "right"])
    assert not made.further
    trained = made.tokens[made.prompt_length :][made.action_mask].tolist()
    assert bytes(trained).decode() == "left\nright\n"


async def test_a_template_that_forgets_gives_further_samples() -> None:
    def use(model: ModelWrapper) -> Experience:
        return model.convert_messages_to_experience(played(model))

    made = await converted(use, ["left", "right"], forgets=True)
    assert [own.response_text for own in (made, *made.further)] == ["left", "right"]


async def test_what_the_model_never_said_is_encoded_and_scored() -> None:
    messages = [said("user", "go"), said("assistant", "left"), said("user", "on")]
    messages += [said("assistant", "right"), said("user", "bye")]
    with pytest.raises(UserError, match="rewrites message 1 of a transcript"):
        await converted(lambda model: model.convert_messages_to_experience(messages), [])


class ContinuingTokenizer(TurnTokenizer):
    """Ends every message but a last one of the assistant, which is continued."""

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        text = "".join(f"<{one['role']}>{one['content']}{END}" for one in messages)
        is_continued = messages[-1]["role"] == "assistant"
        return self.encode(text.removesuffix(END) if is_continued else text + "<assistant>")


async def test_the_end_of_what_the_model_never_said_is_trained_with_it() -> None:
    messages = [said("user", "go"), said("assistant", "left"), said("user", "on")]
    messages += [said("assistant", "right"), said("user", "bye")]

    def use(model: ModelWrapper) -> Experience:
        return model.convert_messages_to_experience(messages)

    model = scripted_model(ScriptedEngine([]), tokenizer=ContinuingTokenizer())
    made = await asyncio.to_thread(use, model)
    trained = made.tokens[made.prompt_length :][made.action_mask].tolist()
    assert bytes(trained).decode() == "left\nright\n"
    assert len(made.logprobs) == len(made.action_mask)


async def test_a_temperature_that_cannot_be_given_is_refused() -> None:
    messages = [said("user", "go"), said("assistant", "left")]

    def use(temperature: float) -> Callable[[ModelWrapper], Experience]:
        return lambda model: model.convert_messages_to_experience(messages, temperature=temperature)

    with pytest.raises(UserError, match=r"those at temperature 1, not 0\.7"):
        await converted(use(0.7), [])


async def test_a_transcript_needs_an_answer() -> None:
    with pytest.raises(UserError, match="nothing to train"):
        await converted(lambda model: model.convert_messages_to_experience([said("user", "a")]), [])


async def test_a_text_in_place_of_messages_is_refused() -> None:
    with pytest.raises(UserError, match="`chat` was given a text: give it messages"):
        await converted(lambda model: model.chat("go")[0], [])


async def test_an_answer_is_the_same_object_in_the_history() -> None:
    def use(model: ModelWrapper) -> Experience:
        (answer,) = model.chat([said("user", "go")])
        assert model.history == [answer]
        assert model.extract_experience_from_history() == [answer]
        assert model.extract_experience_from_history() == []
        assert model.get_message_token_len([said("user", "go")]) == answer.prompt_length
        assert asyncio.run(awaited(model)) == (answer.prompt_length, 4)
        assert (model.model_name, model.model_config.max_model_len) == ("m", 20_000)
        return answer

    async def awaited(model: ModelWrapper) -> tuple[int, int]:
        length = await model.get_message_token_len([said("user", "go")])
        return length, await model.model_version_async

    await converted(use, ["left"])


async def test_a_call_takes_the_arguments_of_a_config() -> None:
    def use(model: ModelWrapper) -> Experience:
        args = {"temperature": 0.5, "top_p": None, "top_k": -1, "logprobs": 0, "max_tokens": 3}
        answers = model.chat([said("user", "go")], **args, n=2, seed=3, stop="x")
        assert len(answers) == 2 and answers[0].truncate_status == "response_truncated"
        return answers[0]

    await converted(use, ["left", "right"])
