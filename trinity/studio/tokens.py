"""The token strip: each token of a response with its text, values and colour level.

Texts come from the checkpoint's own `tokenizer.json`. A character may be split over several tokens:
the last of them shows it, and those before say that they are a part of it. Masked tokens, which
the policy did not choose, have no values and stay out of every scale. The model of a stage is read
from the plan, never fetched.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from trinity.errors import UserError
from trinity.run.runs import read_outline
from trinity.studio.experiences import NOT_RECORDED, TEMPLATE, WholeExperience
from trinity.studio.plain_text import visible_text
from trinity.types import Alignment, Experience, FloatArray
from trinity.types import Sequence as TokenSequence
from trinity.workflows.experience_builder import LIKELIEST_LOGPROBS, LIKELIEST_TOKENS

WINDOW_TOKENS = 1_024
"""Tokens that are shown at once."""
SURPRISE_BOUNDS = (0.1, math.log(2), math.log(10))
"""In nats: likelier than 90 %, 50 %, 10 %, or less."""
AGE_BOUNDS = (1, 2, 3, 5)
NUM_SIGNED_LEVELS = 7
ADVANTAGES, LOG_RATIOS = "advantage in training", "log ratio (trainer to rollout)"
"""Colours by values that the trainer computed."""
MAX_LOG_RATIO = 20.0
PART = "·"
"""Stands for a token that holds a part of a character."""
_TOKENIZER = "tokenizer.json"


class TokenColor(StrEnum):
    """The meaning of a colour of tokens."""

    SURPRISE = "surprise"
    AGE = "age"
    SIGNED = "signed"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenText:
    """The text of one token; empty for a part of a character that a later token completes."""

    text: str
    is_part: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownToken:
    """One token of the strip."""

    text: str
    is_part: bool
    is_chosen: bool
    """True if the policy chose it; all others are masked."""
    level: int | None
    """Step of the colour scale; None where there is no value."""
    is_clipped: bool
    label: str
    """The weights' version, where it changes."""
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStrip:
    """A window of a response's tokens."""

    tokens: tuple[ShownToken, ...]
    first: int
    num_tokens: int
    """Tokens of the whole response."""
    scale: str
    """The ends of the colour scale, in words."""
    note: str
    """One sentence about texts that could not be read; empty otherwise."""


@lru_cache(maxsize=4)
def read_tokenizer(path: Path) -> Tokenizer | None:
    """Returns the tokenizer of a model's directory; None if it has no readable file."""
    try:
        return Tokenizer.from_file(str(path / "tokenizer.json"))
    except Exception:  # the library raises no narrower class
        return None


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[TokenText]:
    """Returns the text of each token, whole characters only."""
    stream = DecodeStream(skip_special_tokens=False)
    texts: list[TokenText] = []
    for token in ids:
        text = stream.step(tokenizer, int(token))
        texts.append(TokenText(text=text or "", is_part=text is None))
    return texts


def colors_of(whole: WholeExperience) -> list[str]:
    """Returns the colourings that the sample's data allows; arrays by their own names."""
    sequence, sample = whole.sequence, whole.sample
    if sequence is None or sample is None:
        return []
    ages = [TokenColor.AGE.value] if sample.version_spans else []
    return [TokenColor.SURPRISE.value, *ages, *signed_arrays(whole)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerValues:
    """Values that the trainer computed of each token, the last time that they were recorded."""

    step: int
    logprobs: FloatArray
    advantages: FloatArray


def trainer_values(whole: WholeExperience) -> TrainerValues | None:
    """Returns the recorded values of the trainer, one for each token of the response."""
    sequence = whole.sequence
    if sequence is None:
        return None
    for use in reversed(whole.uses):
        logprobs = np.frombuffer(use.tokens.logprobs, "<f4")
        advantages = np.frombuffer(use.tokens.advantages, "<f4")
        if len(logprobs) == len(advantages) == sequence.response_length > 0:
            return TrainerValues(step=use.step, logprobs=logprobs, advantages=advantages)
    return None


def signed_arrays(whole: WholeExperience) -> dict[str, FloatArray]:
    """Returns arrays with one number for each token of the response, the trainer's first."""
    sequence, sample = whole.sequence, whole.sample
    assert sequence is not None and sample is not None, "its content is gone"
    stored = {
        name: np.asarray(array.data, np.float32)
        for name, array in sorted(sample.arrays.items())
        if array.alignment is Alignment.RESPONSE and array.data.shape == (sequence.response_length,)
    }
    trainer = trainer_values(whole)
    if trainer is None:
        return stored
    log_ratios = trainer.logprobs - np.asarray(sequence.rollout_logprobs, np.float32)
    return {ADVANTAGES: trainer.advantages, LOG_RATIOS: log_ratios, **stored}


def token_strip(
    whole: WholeExperience, model: Path | None, *, color: str, first: int = 0
) -> TokenStrip:
    """Returns the tokens from `first` on, coloured by one of `colors_of`."""
    sequence, sample = whole.sequence, whole.sample
    assert sequence is not None and sample is not None, "its content is gone"
    tokenizer = read_tokenizer(model) if model is not None else None
    response = [int(token) for token in sequence.tokens[sequence.prompt_length :]]
    texts = (
        token_texts(tokenizer, response)
        if tokenizer is not None
        else [TokenText(text=f" {token}", is_part=False) for token in response]
    )
    maker = _StripMaker(
        whole=whole, sample=sample, sequence=sequence, tokenizer=tokenizer, texts=texts, color=color
    )
    last = min(first + WINDOW_TOKENS, len(response))
    return TokenStrip(
        tokens=tuple(maker.token(place) for place in range(first, last)),
        first=first,
        num_tokens=len(response),
        scale=maker.scale(),
        note="" if tokenizer is not None else _no_tokenizer(model),
    )


def _no_tokenizer(model: Path | None) -> str:
    why = f"{model} has no readable tokenizer.json"
    if model is None:
        why = "there is no tokenizer.json of the stage's model on this machine"
    return f"Tokens are shown by their numbers, as {why}."


class _StripMaker:
    """Makes the tokens of one response."""

    def __init__(
        self,
        *,
        whole: WholeExperience,
        sample: Experience,
        sequence: TokenSequence,
        tokenizer: Tokenizer | None,
        texts: list[TokenText],
        color: str,
    ) -> None:
        self._sample = sample
        self._sequence = sequence
        self._tokenizer = tokenizer
        self._texts = texts
        self._color = color
        self._versions = _versions(sample, sequence.response_length)
        self._train_step = whole.row.train_steps[-1] if whole.row.train_steps else None
        self._arrays = signed_arrays(whole)
        self._trainer = trainer_values(whole)
        self._limit = self._limit_of(color)

    def token(self, place: int) -> ShownToken:
        """Returns one token."""
        is_chosen = bool(self._sequence.action_mask[place])
        level, is_clipped = self._level(place) if is_chosen else (None, False)
        text = self._texts[place]
        return ShownToken(
            text=PART if text.is_part else visible_text(text.text) or "∅",
            is_part=text.is_part,
            is_chosen=is_chosen,
            level=level,
            is_clipped=is_clipped,
            label=self._label(place),
            facts=tuple(self._facts(place, is_chosen)),
        )

    def scale(self) -> str:
        """Returns the ends of the colour scale."""
        match self._color:
            case TokenColor.SURPRISE:
                return "white: likelier than 90 %; then 50 %; 10 %; darkest: less"
            case TokenColor.AGE:
                return "steps between generation and training: 0, 1, 2, 3-4, 5 or more"
        return f"-{self._limit:.3g} (blue) to +{self._limit:.3g} (orange)"

    def _level(self, place: int) -> tuple[int | None, bool]:
        match self._color:
            case TokenColor.SURPRISE:
                surprise = -float(self._sequence.rollout_logprobs[place])
                return sum(surprise >= bound for bound in SURPRISE_BOUNDS), False
            case TokenColor.AGE:
                age = self._age(place)
                return (None if age is None else sum(age >= bound for bound in AGE_BOUNDS)), False
        value = float(self._values(self._color)[place])
        return signed_level(value, self._limit)

    def _age(self, place: int) -> int | None:
        """Returns the steps from the weights that made a token to those it trained."""
        version = self._versions[place]
        if version is None or self._train_step is None:
            return None
        return max(0, self._train_step - 1 - version)

    def _label(self, place: int) -> str:
        version = self._versions[place]
        before = self._versions[place - 1] if place else None
        return f"v{version}" if version is not None and version != before else ""

    def _values(self, name: str) -> FloatArray:
        return self._arrays[name]

    def _limit_of(self, color: str) -> float:
        """Returns the end of a signed scale: the largest value of a token that was chosen."""
        if color not in self._arrays:
            return 1.0
        chosen = np.abs(self._values(color)[self._sequence.action_mask])
        finite = chosen[np.isfinite(chosen)]
        return float(finite.max()) or 1.0 if len(finite) else 1.0

    def _facts(self, place: int, is_chosen: bool) -> Iterator[tuple[str, str]]:
        token = int(self._sequence.tokens[self._sequence.prompt_length + place])
        text = self._texts[place]
        shown = "a part of the next character" if text.is_part else repr(visible_text(text.text))
        yield f"#{place}", f"{shown} (token {token})"
        if not is_chosen:
            yield "masked", "the policy did not choose it; it is not trained on"
            yield "role", self._role(place)
            return
        logprob = float(self._sequence.rollout_logprobs[place])
        yield "rollout", f"{logprob:.3f} nats, {math.exp(min(logprob, 0.0)):.1%}"
        trainer = math.nan if self._trainer is None else float(self._trainer.logprobs[place])
        yield "trainer", _trainer_text(trainer)
        yield "ratio", f"{_ratio(trainer, logprob):.4g}" if math.isfinite(trainer) else NOT_RECORDED
        version = self._versions[place]
        yield "weights", NOT_RECORDED if version is None else f"version {version}"
        for name in self._arrays:
            yield name, _signed_text(float(self._values(name)[place]))
        if likeliest := ", ".join(self._likeliest(place)):
            yield "likeliest", likeliest

    def _role(self, place: int) -> str:
        """Returns the role of the message that a masked token came from."""
        at = self._sequence.prompt_length + place
        spans = self._sequence.role_spans
        if not spans:
            return NOT_RECORDED
        return next((span.role for span in spans if span.start <= at < span.end), TEMPLATE)

    def _likeliest(self, place: int) -> Iterator[str]:
        """Yields the likeliest tokens there, where they were stored."""
        tokens = self._sample.arrays.get(LIKELIEST_TOKENS)
        logprobs = self._sample.arrays.get(LIKELIEST_LOGPROBS)
        if tokens is None or logprobs is None:
            return
        for token, logprob in zip(tokens.data[place], logprobs.data[place], strict=True):
            yield f"{self._text_of(int(token))!r} {math.exp(min(float(logprob), 0.0)):.1%}"

    def _text_of(self, token: int) -> str:
        if self._tokenizer is None:
            return str(token)
        return visible_text(self._tokenizer.decode([token], skip_special_tokens=False))


def _versions(sample: Experience, num_tokens: int) -> list[int | None]:
    found: list[int | None] = [None] * num_tokens
    for span in sample.version_spans:
        for place in range(max(span.start, 0), min(span.end, num_tokens)):
            found[place] = span.version
    return found


def _trainer_text(logprob: float) -> str:
    if not math.isfinite(logprob):
        return NOT_RECORDED
    return f"{logprob:.3f} nats, {math.exp(min(logprob, 0.0)):.1%}"


def _ratio(trainer: float, rollout: float) -> float:
    return math.exp(max(-MAX_LOG_RATIO, min(trainer - rollout, MAX_LOG_RATIO)))


def _signed_text(value: float) -> str:
    return f"{value:+.4g}" if math.isfinite(value) else NOT_RECORDED


def signed_level(value: float, limit: float) -> tuple[int | None, bool]:
    """Returns the step of a scale from -limit to limit, 3 at zero, and true beyond its ends."""
    if not math.isfinite(value):
        return None, True
    share = max(-1.0, min(1.0, value / limit))
    half = NUM_SIGNED_LEVELS // 2
    steps = math.ceil(abs(share) * half - 1e-9)
    return half + int(math.copysign(steps, share)), abs(value) > limit * (1 + 1e-6)


def model_of(job_dir: Path, stage: str) -> Path | None:
    """Returns the directory with the tokenizer that a stage's tokens were made with.

    That is the newest published weights of the run, or the model it started from; None if neither
    has a `tokenizer.json` on this machine.
    """
    published = (job_dir / "stages" / stage / "weights").glob(f"*/{_TOKENIZER}")
    files = sorted((job_dir / "stages" / stage / "model_files").glob(_TOKENIZER))
    for found in (*files, *published):
        return found.parent
    try:
        planned = {known.name: known.model_path for known in read_outline(job_dir).stages}
    except UserError:
        return None
    model = planned.get(stage)
    return Path(model) if model and (Path(model) / _TOKENIZER).is_file() else None
