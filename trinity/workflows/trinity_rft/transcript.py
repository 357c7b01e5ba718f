"""Samples of a transcript: the engine's tokens where it answered, else the transcript as text."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trinity.errors import UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.types import Experience
from trinity.types import Sequence as TokenSequence
from trinity.workflows.answers import ASSISTANT, match_answers
from trinity.workflows.model import ModelWrapper
from trinity.workflows.turns import merge_turns

NOT_ANSWERED = (
    "messages of the assistant in a transcript are not what the model answered to the messages "
    "before them, so they are not trained: append `experience.response_text` as it is"
)
NONE_ANSWERED = (
    "none of the assistant's messages in a transcript is what the model answered to the messages "
    "before it, so the whole is trained as text: append `experience.response_text` as it is"
)
limited_log = RateLimitedLog(logging.getLogger(__name__))


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

    An assistant's message is an answer if the engine gave it to exactly the messages before it.
    Without any such message the transcript is encoded as a whole: all that the assistant says is
    trained, with the model's own log-probabilities. Messages that are no answers beside some that
    are stay context, and the log says so.
    """
    matched = match_answers(said.messages, answers, model.was_asked, by_text=False)
    if not matched.turns:
        if answers:
            limited_log.warning(NONE_ANSWERED, answers=len(answers))
        return [await _encoded(model, said)]
    if left := len(_assistant_places(said.messages)) - len(matched.turns):
        limited_log.warning(NOT_ANSWERED, messages=left, turns=len(matched.turns))
    return merge_turns(matched.turns)


def _assistant_places(messages: list[Any]) -> list[int]:
    """Returns the places of the assistant's messages that follow another message."""
    return [i for i, message in enumerate(messages) if i and message["role"] == ASSISTANT]


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
        role_spans=whole.role_spans,
    )
    return Experience(body=body)
