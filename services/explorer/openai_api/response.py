"""Parts of all answers other than the text: tokens, log-probabilities, usage, fingerprint."""

from collections.abc import Sequence

from services.explorer.engine.tokenizer import MAX_CACHED_TOKENS
from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.types import Experience, FinishReason, JsonObject
from trinity.workflows.experience_builder import LIKELIEST_LOGPROBS, LIKELIEST_TOKENS
from trinity.workflows.generation import ChatTokenizer, Likeliest, Prompt, Scores

MIN_LOGPROB = -9999.0
"""Used instead of minus infinity, which JSON does not have."""


def finish_reason(answer: Experience) -> str:
    """Returns OpenAI's finish reason of an answer."""
    return "stop" if answer.finish_reason is FinishReason.STOP else "length"


def prompt_tokens(answer: Experience) -> list[int]:
    """Returns the tokens of the prompt."""
    tokens: list[int] = answer.sequence.tokens[: answer.sequence.prompt_length].tolist()
    return tokens


def response_tokens(answer: Experience) -> list[int]:
    """Returns the tokens of the response."""
    tokens: list[int] = answer.sequence.tokens[answer.sequence.prompt_length :].tolist()
    return tokens


def top_logprobs_of(answer: Experience) -> Likeliest:
    """Returns the likeliest tokens at each position of the answer; empty if not requested."""
    if LIKELIEST_TOKENS not in answer.arrays:
        return []
    ids = answer.arrays[LIKELIEST_TOKENS].data.tolist()
    values = answer.arrays[LIKELIEST_LOGPROBS].data.tolist()
    return [list(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]


def check_cacheable(prompt: Prompt) -> None:
    """Raises InvalidApiRequest for a prompt that tokenizers do not keep, and no model takes."""
    if len(prompt.token_ids) > MAX_CACHED_TOKENS:
        raise InvalidApiRequest(
            f"a prompt has {len(prompt.token_ids)} tokens, more than any model takes"
        )


def usage_of(answers: Sequence[Experience], num_choices: int) -> JsonObject:
    """Returns the token usage; each prompt is counted once for all its answers."""
    num_prompt_tokens = sum(answer.sequence.prompt_length for answer in answers[::num_choices])
    return usage(num_prompt_tokens, sum(answer.sequence.response_length for answer in answers))


def usage(num_prompt_tokens: int, num_completion_tokens: int) -> JsonObject:
    """Returns the token usage for these counts."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def prompt_logprobs_of(
    tokens: Sequence[int], scores: Scores, tokenizer: ChatTokenizer
) -> list[JsonObject | None]:
    """Returns prompt log-probabilities as vLLM's server does: by token id, None for the first."""
    likeliest = scores.likeliest or [[]] * len(scores.logprobs)
    result: list[JsonObject | None] = [None]
    for token, logprob, others in zip(tokens[1:], scores.logprobs, likeliest, strict=True):
        at_position = dict([(token, logprob), *others])
        result.append(
            {
                str(t): {"logprob": json_logprob(value), "decoded_token": tokenizer.decode([t])}
                for t, value in at_position.items()
            }
        )
    return result


def json_logprob(logprob: float) -> float:
    """Clamps a log-probability to a number that JSON has."""
    return max(logprob, MIN_LOGPROB)


def answer_fingerprint(answer: Experience) -> str:
    """Returns the names of the weights that generated an answer, in order."""
    names = (weights_fingerprint(s.version, s.incarnation) for s in answer.version_spans)
    return "+".join(names)


def weights_fingerprint(version: int, incarnation: int) -> str:
    """Returns the name of weights for clients."""
    return f"v{version}-{incarnation}"
