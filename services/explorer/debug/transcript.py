"""Experiences for a terminal: texts, tokens, masks and rewards."""

import itertools
import textwrap
from collections.abc import Callable, Iterator

from services.explorer.types import AttemptResult
from trinity.control_characters import ESCAPED
from trinity.types import Experience, Pair, Sequence

MAX_TOKENS = 40
"""Tokens of a response that are listed; the output file has all."""
_KEEPS_LINES = {code: text for code, text in ESCAPED.items() if chr(code) not in "\n\t"}
Decode = Callable[[list[int]], str]


def transcript(result: AttemptResult, decode: Decode) -> Iterator[str]:
    """Yields the lines of one run."""
    assignment = result.attempt.assignment
    head = f"task {assignment.position} (row {assignment.task_index} of {assignment.taskset})"
    yield f"== {head}, run {result.attempt.run}: {result.duration_seconds:.2f} s"
    if result.failure:
        yield f"failed: {_safe(result.failure)}"
    for number, experience in enumerate(result.experiences):
        if len(result.experiences) > 1:
            yield f"-- experience {number + 1} of {len(result.experiences)}"
        yield from _experience(experience, decode)


def _experience(experience: Experience, decode: Decode) -> Iterator[str]:
    yield _reward(experience)
    if experience.info:
        yield f"info: {_safe(str(experience.info))}"
    body = experience.body
    if isinstance(body, Pair):
        yield from _block("prompt", body.chosen.prompt_text)
        for name, sequence in (("chosen", body.chosen), ("rejected", body.rejected)):
            yield from _sequence(name, sequence, decode)
        return
    yield from _block("prompt", body.prompt_text)
    yield from _sequence(f"response ({experience.finish_reason})", body, decode)


def _reward(experience: Experience) -> str:
    """Returns the reward with its parts and the metrics."""
    reward = "comes later" if experience.reward is None else f"{experience.reward:g}"
    named = experience.reward_parts | experience.metrics
    more = ", ".join(f"{name} {value:g}" for name, value in named.items())
    return _safe(f"reward {reward}" + (f" ({more})" if more else ""))


def _sequence(name: str, sequence: Sequence, decode: Decode) -> Iterator[str]:
    yield from _block(name, sequence.response_text)
    trained = int(sequence.action_mask.sum())
    yield (
        f"tokens: {sequence.prompt_length} of the prompt, {sequence.response_length} after it, "
        f"{trained} trained"
    )
    yield f"mask: {mask_runs(sequence)}"
    yield from _token_lines(sequence, decode)


def mask_runs(sequence: Sequence) -> str:
    """Returns the mask by its runs, as in `12 trained, 30 not, 8 trained`."""
    runs = [
        f"{len(list(group))} {'trained' if is_trained else 'not'}"
        for is_trained, group in itertools.groupby(bool(flag) for flag in sequence.action_mask)
    ]
    return ", ".join(runs) or "empty"


def _token_lines(sequence: Sequence, decode: Decode) -> Iterator[str]:
    tokens = sequence.tokens[sequence.prompt_length :]
    for place, token in enumerate(tokens[:MAX_TOKENS]):
        is_trained = bool(sequence.action_mask[place])
        logprob = f"{sequence.rollout_logprobs[place]:9.4f}" if is_trained else f"{'-':>9}"
        mark = "*" if is_trained else " "
        yield f"  {place:4d} {mark} {int(token):7d} {logprob}  {decode([int(token)])!r}"
    if len(tokens) > MAX_TOKENS:
        yield f"  ... and {len(tokens) - MAX_TOKENS} more"


def _block(name: str, text: str) -> Iterator[str]:
    yield f"{name}:"
    yield from textwrap.indent(_safe(text), "  ").splitlines() or ["  (empty)"]


def _safe(text: str) -> str:
    """Escapes what would control the terminal: texts are of models and data."""
    return text.translate(_KEEPS_LINES)
