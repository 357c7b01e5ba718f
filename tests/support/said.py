"""Log-probabilities that scripted engines give: other ones at every token, position and version.

Where all are alike, a shift by one, another version's or another token's cannot be seen.
"""

from collections.abc import Sequence

import numpy as np

from trinity.types import Experience


def said_logprob(token: int, position: int, version: int = 0) -> float:
    """Returns one of 4,093 numbers, exact in float32; positions count from the prompt's begin."""
    return -(1 + (31 * token + 127 * position + 1009 * version) % 4093) / 1024


def said_logprobs(prompt: Sequence[int], answer: Sequence[int], version: int = 0) -> list[float]:
    """Returns those of an answer's tokens."""
    return [
        said_logprob(token, position, version)
        for position, token in enumerate(answer, start=len(prompt))
    ]


def said_of(experience: Experience, version: int = 0) -> list[float]:
    """Returns those of all tokens of the response."""
    tokens, begin = experience.sequence.tokens.tolist(), experience.sequence.prompt_length
    return said_logprobs(tokens[:begin], tokens[begin:], version)


def assert_as_said(experience: Experience) -> None:
    """Each trained token has the log-probability of itself, there, by the version of its span."""
    sequence = experience.sequence
    for place in np.flatnonzero(sequence.action_mask).tolist():
        [span] = [one for one in experience.version_spans if one.start <= place < one.end]
        position = sequence.prompt_length + place
        said = said_logprob(int(sequence.tokens[position]), position, span.version)
        assert sequence.rollout_logprobs[place] == said, f"token {place} of the response"
