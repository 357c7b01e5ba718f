"""Log-probabilities in the format of completions: one list per property of the tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.explorer.openai_api.told import tellable
from trinity.types import JsonObject, JsonValue
from trinity.workflows.generation import ChatTokenizer, Likeliest


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A token with the log-probabilities at its position."""

    token: int
    logprob: float | None
    """None for the first token of a prompt."""
    likeliest: list[tuple[int, float]] = field(default_factory=list)


def positions_of(
    tokens: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest
) -> list[Position]:
    """Returns the positions of tokens; `likeliest` is empty if it was not requested."""
    others = likeliest or [[]] * len(tokens)
    return [
        Position(token=token, logprob=logprob, likeliest=tops)
        for token, logprob, tops in zip(tokens, logprobs, others, strict=True)
    ]


def legacy_logprobs(
    positions: Sequence[Position], num_likeliest: int, tokenizer: ChatTokenizer, begin: int = 0
) -> JsonObject:
    """Returns the lists; offsets count the tokens' decoded texts, from `begin` on."""
    texts = [tokenizer.decode([position.token]) for position in positions]
    offsets: list[JsonValue] = []
    for text in texts:
        offsets.append(begin)
        begin += len(text)
    top: list[JsonValue] = [_top(position, num_likeliest, tokenizer) for position in positions]
    return {
        "tokens": [*texts],
        "token_logprobs": [
            None if position.logprob is None else tellable(position.logprob)
            for position in positions
        ],
        "top_logprobs": top if num_likeliest else None,
        "text_offset": offsets,
    }


def _top(position: Position, count: int, tokenizer: ChatTokenizer) -> JsonValue:
    """Returns log-probabilities by token text; the token itself is included."""
    if position.logprob is None:
        return None
    pairs = [*position.likeliest[:count], (position.token, position.logprob)]
    return {tokenizer.decode([token]): tellable(logprob) for token, logprob in pairs}
