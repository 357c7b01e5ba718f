"""What a request asks for that gives text or tokens to go on, or to be looked at."""

from dataclasses import dataclass

from services.explorer.openai_api import fields
from services.explorer.openai_api.fields import MAX_CHOICES, MAX_LOGPROBS, Body
from services.explorer.openai_api.refusals import InvalidRequest
from trinity.workflows.sampling import Sampling

NOT_UNDERSTOOD = ("suffix", "logit_bias", "use_beam_search", "prompt_embeds")
"""What would change the answer and is not understood; all other keys are passed over."""
MAX_ANSWERS = 1024
MOST_TOKENS = 1 << 31
AskedPrompt = str | tuple[int, ...]
"""A text, or the very tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What is to go on, as far as it is looked at."""

    prompts: tuple[AskedPrompt, ...]
    num_choices: int
    """Of each prompt."""
    sampling: Sampling
    logprobs: int | None
    """How many likeliest tokens to tell at each position; None for no log-probabilities."""
    prompt_logprobs: int | None
    """The same of the prompt."""
    echoes: bool
    """Whether the prompt stands before each answer."""
    wants_token_ids: bool
    streams: bool
    includes_usage: bool
    model: str
    """The name that was asked for; empty where none was."""
    seed: int | None

    @property
    def generates(self) -> bool:
        """Whether anything is to go on; else what is given is looked at alone."""
        return self.sampling.get("max_tokens") != 0

    @property
    def num_scored(self) -> int | None:
        """How many likeliest tokens to look for in the prompt; None where it is not looked at."""
        asked = (self.prompt_logprobs, self.logprobs if self.echoes else None)
        return max((one for one in asked if one is not None), default=None)


def read_completion(given: object) -> CompletionRequest:
    """Raises: InvalidRequest naming the key."""
    body = fields.read_body(given, NOT_UNDERSTOOD)
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
        raise InvalidRequest("`echo` is told in one piece: leave out `stream`", param="echo")
    if not asked.generates and (asked.num_scored is None or asked.num_choices > 1):
        raise InvalidRequest(
            "`max_tokens` is 0 only where the prompt's log-probabilities are asked for, once: with "
            "`echo` and `logprobs`, or with `prompt_logprobs`, and `n` 1",
            param="max_tokens",
        )


def _prompts(given: object) -> tuple[AskedPrompt, ...]:
    if isinstance(given, str) or _are_tokens(given):
        return (_prompt(given, "prompt"),)
    if not isinstance(given, list) or not 0 < len(given) <= MAX_ANSWERS:
        raise InvalidRequest(
            f"`prompt` is neither a text nor tokens, nor a list of 1 to {MAX_ANSWERS} such",
            param="prompt",
        )
    return tuple(_prompt(one, f"prompt[{i}]") for i, one in enumerate(given))


def _prompt(given: object, where: str) -> AskedPrompt:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and _are_tokens(given):
        return tuple(given)
    raise InvalidRequest(f"`{where}` is neither a text nor a list of tokens", param=where)


def _are_tokens(given: object) -> bool:
    """True is a number to Python, and tokenizers know none beyond 32 bits."""
    return (
        isinstance(given, list)
        and bool(given)
        and all(isinstance(one, int) and not isinstance(one, bool) for one in given)
        and all(0 <= one < MOST_TOKENS for one in given)
    )
