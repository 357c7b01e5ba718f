"""Reads requests to continue or score plain text or tokens."""

from dataclasses import dataclass

from services.explorer.openai_api import fields
from services.explorer.openai_api.fields import MAX_CHOICES, MAX_LOGPROBS, Body
from services.explorer.openai_api.refusals import InvalidRequest
from trinity.workflows.sampling import Sampling

NOT_UNDERSTOOD = ("suffix", "logit_bias", "use_beam_search", "prompt_embeds")
"""Keys that would change the answer but are not supported; all other keys are ignored."""
MAX_ANSWERS = 1024
MOST_TOKENS = 1 << 31
AskedPrompt = str | tuple[int, ...]
"""A text or its tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """The supported part of a completion request."""

    prompts: tuple[AskedPrompt, ...]
    num_choices: int
    """Number of answers for each prompt."""
    sampling: Sampling
    logprobs: int | None
    """Number of likeliest tokens to report at each position; None for no log-probabilities."""
    prompt_logprobs: int | None
    """The same for the prompt."""
    echoes: bool
    """True if each answer begins with the prompt."""
    wants_token_ids: bool
    streams: bool
    includes_usage: bool
    model: str
    """The requested model name; empty if the request has none."""
    seed: int | None

    @property
    def generates(self) -> bool:
        """True if tokens are generated; otherwise the prompts are only scored."""
        return self.sampling.get("max_tokens") != 0

    @property
    def num_scored(self) -> int | None:
        """Number of likeliest tokens to find at prompt positions; None if it is not scored."""
        counts = (self.prompt_logprobs, self.logprobs if self.echoes else None)
        return max((count for count in counts if count is not None), default=None)


def read_completion(payload: object) -> CompletionRequest:
    """Reads a request; raises InvalidRequest naming the key."""
    body = fields.read_body(payload, NOT_UNDERSTOOD)
    logprobs = None
    sampling = fields.read_sampling(body, least_tokens=0)
    if schema := fields.read_schema(body):
        sampling["json_schema"] = schema
    if body.get("logprobs") is not None:
        logprobs = fields.whole(body, "logprobs", 0, least=0, most=MAX_LOGPROBS)
        sampling["logprobs"] = logprobs
    asked = CompletionRequest(
        prompts=_prompts(body.get("prompt")),
        num_choices=fields.whole(body, "n", 1, most=MAX_CHOICES),
        sampling=sampling,
        logprobs=logprobs,
        prompt_logprobs=fields.read_prompt_logprobs(body),
        echoes=bool(body.get("echo")),
        wants_token_ids=bool(body.get("return_token_ids")),
        streams=bool(body.get("stream")),
        includes_usage=fields.includes_usage(body),
        model=fields.read_model(body),
        seed=fields.read_seed(body),
    )
    _check(asked, body)
    return asked


def _check(asked: CompletionRequest, body: Body) -> None:
    if fields.whole(body, "best_of", asked.num_choices) != asked.num_choices:
        raise InvalidRequest("`best_of` is `n` here: leave it out", param="best_of")
    if len(asked.prompts) * asked.num_choices > MAX_ANSWERS:
        raise InvalidRequest(
            f"`n` for each prompt makes more than {MAX_ANSWERS} answers: ask in several requests",
            param="n",
        )
    if asked.streams and asked.echoes:
        raise InvalidRequest("`echo` cannot be streamed: leave out `stream`", param="echo")
    if not asked.generates and (asked.num_scored is None or asked.num_choices > 1):
        raise InvalidRequest(
            "`max_tokens` may be 0 only if the prompt's log-probabilities are requested, once: "
            "with `echo` and `logprobs`, or with `prompt_logprobs`, and `n` 1",
            param="max_tokens",
        )


def _prompts(value: object) -> tuple[AskedPrompt, ...]:
    if isinstance(value, str) or _are_tokens(value):
        return (_prompt(value, "prompt"),)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ANSWERS:
        raise InvalidRequest(
            f"`prompt` is neither a text nor tokens, nor a list of 1 to {MAX_ANSWERS} such",
            param="prompt",
        )
    return tuple(_prompt(item, f"prompt[{i}]") for i, item in enumerate(value))


def _prompt(value: object, where: str) -> AskedPrompt:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and _are_tokens(value):
        return tuple(value)
    raise InvalidRequest(f"`{where}` is neither a text nor a list of tokens", param=where)


def _are_tokens(value: object) -> bool:
    """Excludes bool, a subclass of int, and numbers beyond the 32 bits of tokenizers."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
        and all(0 <= token < MOST_TOKENS for token in value)
    )
