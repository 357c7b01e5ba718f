"""Converts a workflow's experiences to samples: the engine's, marked ones, or encoded text."""

import dataclasses
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trinity.data.codec import check_sequence
from trinity.errors import UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.types import Alignment, Array, Experience, Pair, VersionSpan
from trinity.types import Sequence as TokenSequence
from trinity.workflows.answers import ASSISTANT, match_answers
from trinity.workflows.experience_builder import AUXILIARY_MODEL
from trinity.workflows.turns import merge_turns

if TYPE_CHECKING:  # that module imports this one
    from trinity.workflows.model import ModelWrapper

NOT_ANSWERED = (
    "messages of the assistant in a transcript are not what the model answered to the messages "
    "before them, so they are not trained: append `experience.response_text` as it is"
)
NONE_ANSWERED = (
    "none of the assistant's messages in a transcript is what the model answered to the messages "
    "before it, so the whole is trained as text: append `experience.response_text` as it is"
)
limited_log = RateLimitedLog(logging.getLogger(__name__))
BUILT = "built_by_workflow"
"""Key in `info` of an experience that no answer of the engine is, and the metric of their share."""
OF_ENGINE = (
    *("version_spans", "turns", "sampling", "chat_template_sha256", "tools_sha256", "blobs"),
)
"""Fields that the engine's answer decides."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation with the tools that it offers."""

    messages: list[Any]
    tools: list[Any]
    temperature: float | None = None
    """Temperature of the log-probabilities of messages that the model did not answer."""


async def transcript_samples(
    model: "ModelWrapper", answers: Sequence[Experience], said: Transcript
) -> list[Experience]:
    """Returns the samples of a transcript without rewards.

    An assistant's message is an answer if the engine gave it to exactly the messages before it.
    Without any such message the transcript is encoded as a whole: all that the assistant says is
    trained, with the model's own log-probabilities. If only some messages are answers, the others
    stay context, with a log line.
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


async def _encoded(model: "ModelWrapper", said: Transcript) -> Experience:
    """Returns the transcript up to its last answer as one sample that the engine did not make.

    Raises: UserError when the template rewrites earlier messages, or it does not fit.
    """
    said = replace(said, messages=list(await model.load_images(said.messages)))
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
        ends = len(after) + len(_end_of(model, whole.token_ids[len(after) :]))
        mask[len(before) - first : ends - first] = True
    end = _end_of(model, _behind(model, said, places[-1])[len(whole.token_ids) :])
    end = end[: model.limits.max_model_len - len(whole.token_ids)]
    tokens, mask = [*whole.token_ids, *end], np.append(mask, np.ones(len(end), np.bool_))
    logprobs = await model.token_logprobs(tokens, said.temperature, whole.image_refs)
    body = TokenSequence(
        tokens=np.array(tokens, dtype=np.int32),
        prompt_length=first,
        action_mask=mask,
        rollout_logprobs=logprobs[first - 1 :],
        prompt_text=model.text_of(tokens[:first]),
        response_text=model.text_of(tokens[first:]),
        role_spans=whole.role_spans,
    )
    return Experience(body=body, blobs=whole.image_refs)


def _behind(model: "ModelWrapper", said: Transcript, place: int) -> list[int]:
    """Returns the tokens of the transcript up to an answer and of what may follow it."""
    follows = {"role": "user", "content": "."}
    messages = [*said.messages[: place + 1], follows]
    try:
        return model.tokenizer.encode_chat(messages, said.tools).token_ids
    except UserError:  # the template does not take it there
        return []


def _end_of(model: "ModelWrapper", behind: list[int]) -> list[int]:
    """Returns the end token that a template writes behind an answer, if it writes one.

    It is special, so that it is no text; a model that never sees it never stops.
    """
    return behind[:1] if behind and not model.tokenizer.decode(behind[:1]) else []


def taken_over(experience: Experience, model: "ModelWrapper") -> Experience:
    """Returns the sample as services take it: an answer of the engine, or one that was built."""
    experience.info, experience.metrics = (
        dict(experience.info or {}),
        dict(experience.metrics or {}),
    )
    _set_custom_fields(experience)
    answer = _answer_of(experience, model)
    if answer is None:
        _mark_as_built(experience, model)
    else:
        _take_from_engine(experience, answer)
    values = {own.name: getattr(experience, own.name) for own in dataclasses.fields(experience)}
    values["reward"] = None if experience.reward is None else float(experience.reward)
    values["info"] = plain_json(experience.info)
    values["metrics"] = {BUILT: 0.0, **numbers_of(experience.metrics)}
    return Experience(**values)


def _set_custom_fields(experience: Experience) -> None:
    for own in experience.custom_fields:
        value = np.asarray(plain_json(experience.info[own.source_field]), dtype=np.float32)
        experience.arrays[own.destination_field] = Array(value, Alignment.SAMPLE)


def _answer_of(experience: Experience, model: "ModelWrapper") -> Experience | None:
    """Returns the engine's answer that an experience repeats; None if a workflow built it.

    One whose tokens or log-probabilities were changed afterwards is built, too.
    """
    body, origin = experience.body, experience.origin
    if isinstance(body, Pair):
        return None
    is_known = origin is not None and origin.version_spans
    known = [origin] if origin is not None and is_known else []
    known += [answer.origin for answer in model.answers if answer.origin is not None]
    has_logprobs = not experience.lacks_logprobs
    found = (own for own in known if _repeats(body, own.sequence, with_logprobs=has_logprobs))
    return next(found, None)


def _take_from_engine(experience: Experience, answer: Experience) -> None:
    """Copies the engine's record to an experience; the workflow may mask more tokens."""
    body, own = experience.sequence, answer.sequence
    if experience.origin is not answer and experience.truncate_status is None:
        experience.finish_reason = answer.finish_reason
    for name in OF_ENGINE:
        setattr(experience, name, getattr(answer, name))
    if other := answer.info.get(AUXILIARY_MODEL):
        experience.info[AUXILIARY_MODEL] = other
    experience.body = replace(
        own,
        action_mask=body.action_mask & own.action_mask,
        prompt_text=body.prompt_text or own.prompt_text,
        response_text=body.response_text or own.response_text,
    )


def _repeats(built: TokenSequence, own: TokenSequence, *, with_logprobs: bool) -> bool:
    """True for the same tokens, with the same log-probabilities wherever both train them.

    False if it trains tokens that the engine did not generate, unless the engine generated no
    tokens.
    """
    is_same = (
        own.prompt_length == built.prompt_length
        and np.array_equal(own.tokens, built.tokens)
        and own.action_mask.shape == built.action_mask.shape
    )
    if not is_same or (own.action_mask.any() and (built.action_mask & ~own.action_mask).any()):
        return False
    trained_R = built.action_mask & own.action_mask
    given_R, known_R = built.rollout_logprobs, own.rollout_logprobs
    return not with_logprobs or (
        given_R.shape == known_R.shape
        and np.array_equal(given_R[trained_R], known_R[trained_R], equal_nan=True)
    )


def _mark_as_built(experience: Experience, model: "ModelWrapper") -> None:
    """Marks an experience that the workflow built.

    Its weights are those of the answers that it was made of, as far as it names them for all of its
    response, else those with which the run began.

    Log-probabilities that it lacks are the model's own, at temperature 1.

    Raises: UserError for lengths that do not fit, and for tokens that the model does not have.
    """
    experience.info[BUILT] = True
    experience.turns = ()
    experience.metrics[BUILT] = 1.0
    body = experience.body
    for side in (body.chosen, body.rejected) if isinstance(body, Pair) else (body,):
        check_sequence(side)
        _check_tokens(side, model)
    if isinstance(body, Pair):
        return
    _fill_in(experience, body, model)
    version, incarnation = model.weights
    whole = VersionSpan(start=0, end=body.response_length, version=version, incarnation=incarnation)
    spans = experience.version_spans
    if not spans or spans[-1].end != body.response_length:
        experience.version_spans = (whole,)


def _check_tokens(sequence: TokenSequence, model: "ModelWrapper") -> None:
    """Asks the engine, which refuses unknown tokens: a trainer would crash on them."""
    length, limit = len(sequence.tokens), model.limits.max_model_len
    if length > limit:
        raise UserError(
            f"a workflow built an experience of {length} tokens, `model.max_model_len` is {limit}: "
            "cut it"
        )
    if model.limits.is_known:
        ends = [int(sequence.tokens.min()), int(sequence.tokens.max())]
        model.wait_in_thread(model.score_async(ends))


def _fill_in(experience: Experience, body: TokenSequence, model: "ModelWrapper") -> None:
    tokens_L = body.tokens.tolist()
    if experience.lacks_logprobs:
        asked = model.token_logprobs(tokens_L, images=experience.blobs)
        experience.logprobs = model.wait_in_thread(asked)[body.prompt_length - 1 :]
    body.response_text = body.response_text or model.text_of(tokens_L[body.prompt_length :])
    body.prompt_text = body.prompt_text or model.text_of(tokens_L[: body.prompt_length])


def rewarded(
    samples: Iterable[Experience], parts: Mapping[str, float], metrics: Mapping[str, float]
) -> list[Experience]:
    """Returns the samples of a run with its rewards and metrics."""
    given = list(samples)
    for sample in given:
        sample.reward_parts = dict(parts)
        sample.reward = sum(parts.values())
        sample.metrics |= {**parts, **metrics}
    return given


def plain_json(value: Any) -> Any:
    """Returns a value of `info` as JSON; other objects become text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_json(own) for key, own in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(own) for own in value]
    if isinstance(value, np.generic):
        return value.item()
    torch = sys.modules.get("torch")
    if isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor)):
        return value.tolist()
    return str(value)


def numbers_of(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the metrics that are numbers."""
    found = {}
    for name, value in (metrics or {}).items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found


def further_samples(given: Iterable[Experience]) -> list[Experience]:
    """Returns experiences, each followed by the further samples of its conversation."""
    samples: list[Experience] = []
    for experience in given:
        samples.append(experience)
        for other in experience.further:
            other.reward = experience.reward
            other.info = {**experience.info, **other.info}
            samples.append(other)
    return samples
