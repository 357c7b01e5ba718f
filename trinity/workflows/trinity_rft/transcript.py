"""Samples of a transcript: the engine's tokens where it answered, else the transcript as text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trinity.errors import UserError
from trinity.types import Experience
from trinity.types import Sequence as TokenSequence
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turns import merge_turns

ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation with the tools that it offers."""

    messages: list[Any]
    tools: list[Any]
    temperature: float | None = None
    """That of log-probabilities of what the model did not answer."""


async def transcript_samples(
    model: ModelWrapper, answers: Sequence[Experience], said: Transcript
) -> list[Experience]:
    """Returns the samples of a transcript without rewards.

    An assistant's message is an answer if the engine gave this text to exactly the messages
    before it. Without any such message the transcript is encoded as a whole: all that the
    assistant says is trained, with the model's own log-probabilities.
    """
    turns = _turns(model, answers, said)
    if turns:
        return merge_turns(turns)
    return [await _encoded(model, said)]


def _turns(
    model: ModelWrapper, answers: Sequence[Experience], said: Transcript
) -> list[Experience]:
    """Returns the answers that are messages of the transcript, in its order, each once."""
    left = list(answers)
    turns: list[Experience] = []
    for index in _assistant_places(said.messages):
        prompt = model.tokenizer.encode_chat(said.messages[:index], said.tools).token_ids
        text = _text(said.messages[index])
        for answer in left:
            if answer.response_text.strip() == text and _has_prompt(answer, prompt):
                turns.append(answer)
                left = [other for other in left if other is not answer]
                break
    return turns


def _has_prompt(answer: Experience, prompt: list[int]) -> bool:
    sequence = answer.sequence
    return sequence.prompt_length == len(prompt) and np.array_equal(
        sequence.tokens[: sequence.prompt_length], prompt
    )


def _assistant_places(messages: list[Any]) -> list[int]:
    """Returns the places of the assistant's messages that follow another message."""
    return [i for i, message in enumerate(messages) if i and message["role"] == ASSISTANT]


def _text(message: Any) -> str:
    return str(message.get("content") or "").strip()


async def _encoded(model: ModelWrapper, said: Transcript) -> Experience:
    """Returns the transcript up to its last answer as one sample that the engine did not make.

    Raises: UserError when the template rewrites earlier messages, or it does not fit.
    """
    messages, tools = said.messages, said.tools
    places = _assistant_places(messages)
    if not places:
        raise UserError("a transcript without a message of the assistant has nothing to train")
    encode = model.tokenizer.encode_chat
    whole = encode(messages[: places[-1] + 1], tools)
    first = len(encode(messages[: places[0]], tools).token_ids)
    mask = np.zeros(len(whole.token_ids) - first, dtype=np.bool_)
    for place in places:
        before = encode(messages[:place], tools).token_ids
        after = encode(messages[: place + 1], tools).token_ids
        if whole.token_ids[: len(after)] != after or after[: len(before)] != before:
            raise UserError(
                f"the chat template rewrites message {place} of a transcript that the model did "
                "not answer in this run, so its tokens are not known: append "
                "`experience.response_text` as it is"
            )
        mask[len(before) - first : len(after) - first] = True
    logprobs = await model.logprobs_async(whole.token_ids, said.temperature)
    body = TokenSequence(
        tokens=np.array(whole.token_ids, dtype=np.int32),
        prompt_length=first,
        action_mask=mask,
        rollout_logprobs=logprobs[first - 1 :],
        prompt_text=model.text_of(whole.token_ids[:first]),
        response_text=model.text_of(whole.token_ids[first:]),
    )
    return Experience(body=body)
