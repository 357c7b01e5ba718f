"""Log-probabilities as completions have them: one list for each thing that is told of a token."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.explorer.openai_api.told import tellable
from trinity.types import JsonObject, JsonValue
from trinity.workflows.generation import ChatTokenizer, Likeliest


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A token with what is known at its place."""

    token: int
    logprob: float | None
    """Nothing is known of the first token of a prompt."""
    likeliest: list[tuple[int, float]] = field(default_factory=list)


def positions_of(
    tokens: Sequence[int], logprobs: Sequence[float], likeliest: Likeliest
) -> list[Position]:
    """Tokens in their order; `likeliest` is empty where none were asked for."""
    others = likeliest or [[]] * len(tokens)
    return [
        Position(token=token, logprob=logprob, likeliest=beside)
        for token, logprob, beside in zip(tokens, logprobs, others, strict=True)
    ]


def legacy_logprobs(
    positions: Sequence[Position], num_likeliest: int, tokenizer: ChatTokenizer, begin: int = 0
) -> JsonObject:
    """Offsets are those of the tokens' own texts, the first of which is at `begin`."""
    texts = [tokenizer.decode([one.token]) for one in positions]
    offsets: list[JsonValue] = []
    for text in texts:
        offsets.append(begin)
        begin += len(text)
    top: list[JsonValue] = [_top(one, num_likeliest, tokenizer) for one in positions]
    return {
        "tokens": [*texts],
        "token_logprobs": [
            None if one.logprob is None else tellable(one.logprob) for one in positions
        ],
        "top_logprobs": top if num_likeliest else None,
        "text_offset": offsets,
    }


def _top(position: Position, count: int, tokenizer: ChatTokenizer) -> JsonValue:
    """By their texts, the token itself among them."""
    if position.logprob is None:
        return None
    told = [*position.likeliest[:count], (position.token, position.logprob)]
    return {tokenizer.decode([token]): tellable(logprob) for token, logprob in told}
