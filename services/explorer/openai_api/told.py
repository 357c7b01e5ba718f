"""What answers of every kind tell beside the text: tokens, log-probabilities, usage, weights."""

from collections.abc import Sequence

from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.generation import ChatTokenizer, Likeliest, Scores
from trinity.workflows.sampling import LIKELIEST_LOGPROBS, LIKELIEST_TOKENS

LEAST_LOGPROB = -9999.0
"""JSON has no infinity."""


def finish_reason(answer: Experience) -> str:
    """Why it ends, as OpenAI calls it."""
    return "stop" if answer.finish_reason is FinishReason.STOP else "length"


def prompt_tokens(answer: Experience) -> list[int]:
    """What was asked, as tokens."""
    tokens: list[int] = answer.sequence.tokens[: answer.sequence.prompt_length].tolist()
    return tokens


def response_tokens(answer: Experience) -> list[int]:
    """What was answered, as tokens."""
    tokens: list[int] = answer.sequence.tokens[answer.sequence.prompt_length :].tolist()
    return tokens


def likeliest_of(answer: Experience) -> Likeliest:
    """The likeliest tokens at each of the answer's positions; empty where none were asked for."""
    if LIKELIEST_TOKENS not in answer.arrays:
        return []
    ids = answer.arrays[LIKELIEST_TOKENS].data.tolist()
    values = answer.arrays[LIKELIEST_LOGPROBS].data.tolist()
    return [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]


def usage_of(answers: Sequence[Experience], num_choices: int) -> JsonObject:
    """Tokens of each prompt, which is counted once, and of all answers."""
    num_asked = sum(one.sequence.prompt_length for one in answers[::num_choices])
    return usage(num_asked, sum(one.sequence.response_length for one in answers))


def usage(num_asked: int, num_answered: int) -> JsonObject:
    """Numbers of tokens."""
    return {
        "prompt_tokens": num_asked,
        "completion_tokens": num_answered,
        "total_tokens": num_asked + num_answered,
    }


def prompt_logprobs_of(
    tokens: Sequence[int], scores: Scores, tokenizer: ChatTokenizer
) -> list[JsonObject | None]:
    """As vLLM's server has it: by the token's id, with the likeliest ones; nothing of the first."""
    likeliest = scores.likeliest or [[]] * len(scores.logprobs)
    told: list[JsonObject | None] = [None]
    for token, logprob, others in zip(tokens[1:], scores.logprobs, likeliest, strict=True):
        at_place = dict([(token, logprob), *others])
        told.append(
            {
                str(one): {"logprob": tellable(value), "decoded_token": tokenizer.decode([one])}
                for one, value in at_place.items()
            }
        )
    return told


def tellable(logprob: float) -> float:
    """One that JSON has a number for."""
    return max(logprob, LEAST_LOGPROB)


def fingerprint(answer: Experience) -> str:
    """Which weights an answer was made with."""
    span = answer.version_spans[0]
    return fingerprint_of(span.version, span.incarnation)


def fingerprint_of(version: int, incarnation: int) -> str:
    """How weights are named to clients."""
    return f"v{version}-{incarnation}"
