"""The part of a model that writes no answers: its address, clients, settings, tokenizer, scores."""

import asyncio
import itertools
import uuid
from collections.abc import Awaitable, Coroutine, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from trinity.data.images import images_of, with_hashes
from trinity.errors import UserError
from trinity.plugins import get_logger
from trinity.types import Experience, JsonObject, SamplingParams
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.generation import (
    AttemptCalls,
    ChatTokenizer,
    ModelLimits,
    Prompt,
    PromptImages,
    RatedChat,
    Scores,
    as_score,
    rater_of,
)
from trinity.workflows.generation import (
    Generator as Engine,
)
from trinity.workflows.messages import Message, as_mappings, for_template

if TYPE_CHECKING:
    import openai

ValueT = TypeVar("ValueT")
OPENAI_MISSING = "the package `openai` is missing: install it beside the explorer"
OVERRIDES = frozenset(SamplingOverrides.__annotations__)
WITHOUT_EFFECT = frozenset({"seed", "lora_request", "detokenize", "skip_special_tokens", "stream"})
"""Arguments of a call that are ignored; the seed, because each run has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """The address at which one attempt reaches the model, and the key."""

    address: str
    """Begins with http:// and ends with /v1."""
    key: str
    model_path: str

    def redacted(self, text: str) -> str:
        """Returns a text without the key and the secret part of the address."""
        secret = self.address.removesuffix("/v1").rpartition("/")[2]
        return text.replace(secret, "***").replace(self.key, "***")


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceModelConfig:
    """The part of the model's configuration that workflows may read."""

    name: str | None
    model_path: str
    temperature: float
    top_p: float
    top_k: int
    logprobs: int
    max_model_len: int
    max_prompt_tokens: int
    max_response_tokens: int
    min_response_tokens: int
    enable_prompt_truncation: bool
    enable_openai_api: bool
    enable_history: bool = True
    enable_thinking: bool | None = None
    enable_lora: bool = False
    engine_type: str = "vllm"


class TokenCount(int):
    """A number of tokens that may also be awaited, as workflows for Trinity-RFT 0.6 do."""

    def __await__(self) -> Generator[None, None, int]:
        """Returns the number at once."""
        yield from ()
        return int(self)


def client(access: ApiAccess) -> "openai.OpenAI":
    """Returns a blocking client, for workflows in a thread; failed calls are not retried.

    Raises: UserError when the package is missing.
    """
    try:
        from openai import OpenAI
    except ImportError as error:
        raise UserError(OPENAI_MISSING) from error
    openai_client = OpenAI(base_url=access.address, api_key=access.key, max_retries=0, timeout=None)
    openai_client.model_path = access.model_path  # type: ignore[attr-defined]
    return openai_client


def async_client(access: ApiAccess) -> "openai.AsyncOpenAI":
    """Returns an asynchronous client, for workflows with `is_async`; see `client`."""
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise UserError(OPENAI_MISSING) from error
    openai_client = AsyncOpenAI(
        base_url=access.address, api_key=access.key, max_retries=0, timeout=None
    )
    openai_client.model_path = access.model_path  # type: ignore[attr-defined]
    return openai_client


class ModelAccess:
    """A part of `ModelWrapper`; the model has no address until `enable_api` is called."""

    enable_history = True
    enable_lora = False
    scores = False
    """True for a model that scores and writes no texts."""
    logger = get_logger("trinity.workflows.model")
    _api: ApiAccess | None = None
    _client: "openai.OpenAI | None" = None
    _async_client: "openai.AsyncOpenAI | None" = None
    _model_path = ""
    _name = ""
    _calls: AttemptCalls
    _tokenizer: ChatTokenizer
    _limits: ModelLimits
    _sampling: SamplingParams
    _images: PromptImages | None = None
    _loading: asyncio.Lock
    _version: int
    _incarnation: int
    _state: dict[str, Any]
    _tools: dict[bytes, tuple[JsonObject, ...]]

    def enable_api(self, access: ApiAccess) -> None:
        """Makes the model available over HTTP too."""
        self._api = access

    async def load_images(self, messages: Sequence[Any]) -> Sequence[Any]:
        """Returns a chat that the tokenizer can encode: its images are stored, parts name them.

        Calls keep their order, from which their seeds follow.
        """
        if self._images is None:
            return messages
        async with self._loading:
            return await self._images.loaded(messages)

    async def shown(self, prompt: Prompt) -> list[int]:
        """Returns a prompt's token ids, with its images, as engines take them."""
        return prompt.token_ids if self._images is None else await self._images.shown(prompt)

    @property
    def num_engine_calls(self) -> int:
        """Calls of the engine so far, by the workflow or over HTTP."""
        return self._calls.num_begun

    @property
    def num_drawn_tokens(self) -> int:
        """Tokens of the answers so far."""
        return self._calls.num_tokens

    @property
    def is_closed(self) -> bool:
        """True if the attempt is over."""
        return self._calls.is_closed

    @property
    def is_reusable(self) -> bool:
        """False once an asynchronous client was given away: it belongs to one event loop."""
        return self._async_client is None

    @property
    def limits(self) -> ModelLimits:
        """Limits of calls."""
        return self._limits

    @property
    def sampling(self) -> SamplingParams:
        """Sampling of calls without overrides."""
        return self._sampling

    @property
    def weights(self) -> tuple[int, int]:
        """Version and incarnation of the weights."""
        return self._version, self._incarnation

    @property
    def name(self) -> str:
        """Name of an auxiliary model; empty for the policy."""
        return self._name

    @property
    def model_version(self) -> int:
        """Version of the weights that this run uses."""
        return self._version

    @property
    def model_version_async(self) -> Awaitable[int]:
        """Version of the weights that this run uses, to be awaited."""
        return _value(self._version)

    @property
    def model_path(self) -> str:
        """The model's name in requests."""
        return self._model_path or self.api_access.model_path

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        return self.model_path

    @property
    def has_api(self) -> bool:
        """True if the model has an OpenAI-compatible address."""
        return self._api is not None

    @property
    def api_access(self) -> ApiAccess:
        """Address and key of this attempt, for agents that use their own client.

        Raises: UserError when the model has no address.
        """
        if self._api is None:
            raise UserError(
                "the model has no OpenAI-compatible address: set "
                "`explorer.rollout_model.enable_openai_api: true`"
            )
        return self._api

    @property
    def api_address(self) -> str:
        """The address of the model's server; clients ask below it, at /v1."""
        return self.api_access.address.removesuffix("/v1")

    @property
    def api_key(self) -> str:
        """The bearer token that requests must carry."""
        return self.api_access.key

    def get_openai_client(self) -> "openai.OpenAI":
        """Returns the blocking OpenAI client of this model; its calls belong to the run."""
        self._client = self._client or client(self.api_access)
        return self._client

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """Returns an asynchronous OpenAI client of this model; its calls belong to the run."""
        self._async_client = async_client(self.api_access)
        return self._async_client

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Sampling of the model, as arguments of an OpenAI client's call."""
        names = ("temperature", "top_p", "max_tokens")
        return {name: getattr(self._sampling, name) for name in names}

    @property
    def model_config(self) -> InferenceModelConfig:
        """The part of the model's configuration that workflows may read."""
        sampling, limits = self._sampling, self._limits
        return InferenceModelConfig(
            name=self.name or None,
            model_path=self._model_path,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            logprobs=sampling.logprobs,
            max_model_len=limits.max_model_len,
            max_prompt_tokens=limits.max_prompt_tokens,
            max_response_tokens=sampling.max_tokens,
            min_response_tokens=limits.min_tokens,
            enable_prompt_truncation=limits.truncate_prompts,
            enable_openai_api=self.has_api,
        )

    config = model_config

    async def await_elsewhere(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Awaits a call of this model from any event loop, such as that of a thread."""
        return await self._calls.awaited(call)

    def wait_in_thread(self, call: Coroutine[object, object, ValueT]) -> ValueT:
        """Waits for a call of this model, in a thread that is not the event loop's."""
        return self._calls.wait_in_thread(call)

    @property
    def tokenizer(self) -> ChatTokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def encode(self, prompt: str | Sequence[int]) -> Prompt:
        """Encodes a text; tokens stay as they are."""
        if isinstance(prompt, str):
            encoded = self._tokenizer.encode(prompt)
        else:
            encoded = Prompt(text=self.text_of(prompt), token_ids=[int(token) for token in prompt])
        if not encoded.token_ids:
            raise UserError("a prompt has no tokens: give at least one")
        return encoded

    @property
    def answer_id(self) -> str:
        """A name for the answers to one request, in hexadecimal digits."""
        return uuid.uuid4().hex

    def was_asked(self, messages: Sequence[Message], answer: Experience) -> bool:
        """Returns true if an answer is the answer to exactly these messages, with its call's tools.

        Messages are compared as tokens, as they are and as the API passes them on, and images by
        their hashes.
        """
        if images_of(as_mappings(messages)) != list(answer.blobs):
            return False
        sequence = answer.sequence
        prompt = sequence.tokens[: sequence.prompt_length].tolist()
        return self.encodes_to(messages, prompt, answer.tools_sha256)

    def encodes_to(
        self, messages: Sequence[Message], prompt: list[int], tools_sha256: bytes
    ) -> bool:
        """Returns true if a chat, with tools of an earlier call, is this prompt."""
        tools = self._tools.get(tools_sha256, ())
        given = as_mappings(messages)
        plain = [for_template(message) for message in given]
        for asked in (given, plain) if plain != given else (plain,):
            try:
                encoded = self._tokenizer.encode_chat(asked, tools).token_ids if asked else []
            except UserError:  # the chat template does not take them
                continue
            if encoded == prompt:
                return True
        return False

    def text_of(self, tokens: Sequence[int]) -> str:
        """Decodes tokens with the model's tokenizer, without special tokens."""
        return self._tokenizer.decode([int(token) for token in tokens])

    def get_message_token_len(self, messages: Sequence[Any]) -> TokenCount:
        """Returns the number of tokens of a chat as a prompt; it may be awaited."""
        return TokenCount(len(self._tokenizer.encode_chat(with_hashes(messages)).token_ids))

    def clone_with_isolated_history(self) -> Self:
        """Returns this model: each attempt has a separate history."""
        return self

    def bind(self, model: Self) -> None:
        """Becomes the model of another attempt; a client that was handed out goes with it."""
        given = self._client
        vars(self).update({"_client": None, **vars(model)})
        if given is not None and self.has_api:
            given.base_url, given.api_key = self.api_access.address, self.api_key
            self._client = given

    @property
    def workflow_state(self) -> dict[str, Any]:
        """The state, as the workflow has told it."""
        return self._state

    async def set_workflow_state(self, state: dict[str, Any]) -> None:
        """Adds to the workflow's state."""
        self._state.update(state)

    async def get_workflow_state(self) -> dict[str, Any]:
        """Returns the state, as the workflow has told it."""
        return dict(self._state)


class RatingModel(ModelAccess):
    """A part of `ModelWrapper`.

    score = await scorer.rate([*messages, {"role": "assistant", "content": "4"}])
    scores = await scorer.rate_steps(messages, ["first 2", "then 4"], tag="<step>")
    """

    _generator: Engine

    async def rate(self, messages: Sequence[Any], *, label: int = -1) -> float:
        """Returns the score of a chat, with the answer as its last message, by a model that scores.

        It is the logit of a model with one label, else the probability of one of several labels.
        """
        [logits] = await self.rate_chat(RatedChat(messages=as_mappings(messages)))
        return as_score(logits, label)

    async def rate_steps(
        self, messages: Sequence[Any], steps: Sequence[str], *, tag: str, label: int = -1
    ) -> list[float]:
        """Returns the score of each step of an answer to a chat, at the `tag` that follows it."""
        parts = [f"{step}{tag}" for step in steps]
        answer = Message(role="assistant", content="".join(parts))
        ends = list(itertools.accumulate(map(len, parts)))
        chat = RatedChat(messages=[*as_mappings(messages), answer], step_ends=ends)
        return [as_score(logits, label) for logits in await self.rate_chat(chat)]

    async def rate_chat(self, chat: RatedChat) -> list[list[float]]:
        """Returns the logits of all labels, of each step or of the whole chat."""
        return await self._calls.awaited(self._rate(chat))

    async def _rate(self, chat: RatedChat) -> list[list[float]]:
        self._calls.require_open()
        with self._calls.in_progress():
            return await rater_of(self._generator).rate(chat)

    async def score_shown(
        self, tokens: Sequence[int], num_likeliest: int = 0, images: Sequence[JsonObject] = ()
    ) -> Scores:
        """Scores tokens, among which are those of the images; see `score_async`."""
        self._calls.require_open()
        token_ids = [int(token) for token in tokens]
        limit = self._limits.max_model_len
        if not 1 <= len(token_ids) <= limit:
            raise UserError(
                f"log-probabilities are given for 1 to {limit} tokens (`max_model_len`), "
                f"not for {len(token_ids)}"
            )
        if images and self._images is None:
            model = f"`{self._name}` in `explorer.auxiliary_models`" if self._name else "policy"
            raise UserError(
                f"a sequence has images, and the model {model} reads none: give one that does"
            )
        with self._calls.in_progress():
            if len(token_ids) == 1:
                return Scores(logprobs=[])
            shown = await self.shown(Prompt(text="", token_ids=token_ids, images=tuple(images)))
            return await self._generator.score(shown, num_likeliest=num_likeliest)


async def _value(value: ValueT) -> ValueT:
    return value


def sampling_of(given: Mapping[str, Any]) -> SamplingOverrides:
    """Returns the arguments of a call as sampling; those that are None are the taskset's.

    Raises: UserError for an argument that would change the answer and cannot be given here.
    """
    known = {k: v for k, v in given.items() if v is not None and k not in WITHOUT_EFFECT}
    if "max_completion_tokens" in known:
        known["max_tokens"] = known.pop("max_completion_tokens")
    if isinstance(known.get("stop"), str) and known["stop"]:
        known["stop"] = [known["stop"]]
    if unknown := sorted(known.keys() - OVERRIDES):
        raise UserError(
            f"a call of the model has `{'`, `'.join(unknown)}`, which it does not take: it takes "
            f"n, tools, {', '.join(sorted(OVERRIDES))}"
        )
    if isinstance(known.get("logprobs"), bool):
        known["logprobs"] = int(known["logprobs"])
    return cast(SamplingOverrides, known)


def checked_messages(messages: object) -> Sequence[Any]:
    """Returns messages; raises UserError for a text."""
    if isinstance(messages, str):
        raise UserError(
            "`chat` was given a text: give it messages, `[{'role': 'user', 'content': text}]`, "
            "or call `generate`; rows may hold messages in the prompt column"
        )
    given: Any = messages
    return list(given)
