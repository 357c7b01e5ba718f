"""The model as Trinity-RFT's workflows call it: in a thread, with or without a loop of its own."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from trinity.errors import UserError
from trinity.rft.workflows.samples import Transcript, transcript_samples
from trinity.types import Experience, FloatArray
from trinity.workflows.experience_builder import SamplingOverrides
from trinity.workflows.model import ModelWrapper as OurModel

if TYPE_CHECKING:
    import openai

ValueT = TypeVar("ValueT")
logger = logging.getLogger(__name__)
OVERRIDES = frozenset(SamplingOverrides.__annotations__)
WITHOUT_EFFECT = frozenset({"seed", "lora_request", "detokenize", "skip_special_tokens", "stream"})
"""Arguments of a call that change nothing here: each run has a seed of its own."""
Call = Callable[[], Coroutine[object, object, ValueT]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
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


class ModelWrapper:
    """A model for one attempt; answers are experiences with Trinity-RFT's fields.

    Every call is recorded, so `extract_experience_from_history` always works. An answer is the
    same object wherever it is returned. After the attempt every call raises AttemptOver.
    """

    def __init__(self, model: OurModel, *, model_path: str = "") -> None:
        self._model = model
        self._path = model_path
        self._answers: dict[int, tuple[Experience, Experience]] = {}
        """By the identity of the engine's answer, in the order in which they were seen."""
        self.logger = logger
        self.workflow_state: dict[str, Any] = {}
        self._client: openai.OpenAI | None = None
        self._async_client: openai.AsyncOpenAI | None = None
        model.keep_history()

    def bind(self, model: OurModel) -> None:
        """Goes on with the model of another attempt; clients that were handed out go with it."""
        self._model = model
        self._answers.clear()
        self.workflow_state = {}
        model.keep_history()
        for client in (self._client, self._async_client):
            if client is not None:
                client.base_url = model.api_address
                client.api_key = model.api_key

    @property
    def is_reusable(self) -> bool:
        """False once an asynchronous client was given away: it belongs to one event loop."""
        return self._async_client is None

    @property
    def own(self) -> OurModel:
        """The model below."""
        return self._model

    @property
    def answers(self) -> list[tuple[Experience, Experience]]:
        """The engine's answers of this attempt, and what the workflow has of them."""
        self._known(self._model.extract_experience_from_history(clear_history=False))
        return list(self._answers.values())

    def chat(self, messages: Sequence[Any], **kwargs: Any) -> list[Experience]:
        """Returns `n` answers to a chat."""
        return self._known(self._model.wait_in_thread(self._chat(messages, kwargs)))

    async def chat_async(self, messages: Sequence[Any], **kwargs: Any) -> list[Experience]:
        """Returns `n` answers to a chat."""
        return self._known(await self._model.await_elsewhere(self._chat(messages, kwargs)))

    def generate(self, prompts: str | Sequence[Any], **kwargs: Any) -> list[Experience]:
        """Returns `n` continuations of each prompt, in their order."""
        return self._known(self._model.wait_in_thread(self._generate(prompts, kwargs)))

    async def generate_async(self, prompts: str | Sequence[Any], **kwargs: Any) -> list[Experience]:
        """Returns `n` continuations of each prompt, in their order."""
        return self._known(await self._model.await_elsewhere(self._generate(prompts, kwargs)))

    def logprobs(self, tokens: Any, temperature: float | None = None) -> Any:
        """Returns log-probabilities of all tokens but the first, as a tensor."""
        return _as_tensor(self._model.wait_in_thread(self._logprobs(tokens, temperature)))

    async def logprobs_async(self, tokens: Any, temperature: float | None = None) -> Any:
        """Returns log-probabilities of all tokens but the first, as a tensor."""
        found = await self._model.await_elsewhere(self._logprobs(tokens, temperature))
        return _as_tensor(found)

    def convert_messages_to_experience(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """Returns the sample of a transcript: the engine's tokens wherever it answered.

        Where the template does not repeat them, `further` has the rest as samples of their own. A
        temperature is that of a transcript that the model did not answer: only 1 is given.
        """
        return self._model.wait_in_thread(self._convert(messages, tools, temperature))

    async def convert_messages_to_experience_async(
        self,
        messages: Sequence[Any],
        tools: Sequence[Any] | None = None,
        temperature: float | None = None,
    ) -> Experience:
        """Returns the sample of a transcript; see `convert_messages_to_experience`."""
        return await self._model.await_elsewhere(self._convert(messages, tools, temperature))

    def extract_experience_from_history(self, clear_history: bool = True) -> list[Experience]:
        """Returns the answers to all calls since the history was cleared, in call order."""
        return self._known(self._model.extract_experience_from_history(clear_history))

    @property
    def history(self) -> list[Experience]:
        """The answers since the history was cleared."""
        return self.extract_experience_from_history(clear_history=False)

    enable_history = True
    enable_lora = False

    def clone_with_isolated_history(self) -> "ModelWrapper":
        """Returns this model: each attempt has a history of its own."""
        return self

    @property
    def model_version(self) -> int:
        """Version of the weights that this run uses."""
        return self._model.model_version

    @property
    def model_version_async(self) -> Awaitable[int]:
        """Version of the weights that this run uses, to be awaited."""
        return _value(self._model.model_version)

    @property
    def model_path(self) -> str:
        """The model's name in requests."""
        return self._path

    @property
    def model_name(self) -> str:
        """The model's name in requests."""
        return self._path

    @property
    def api_address(self) -> str:
        """The address of the model's server; clients ask below it at /v1."""
        return self._model.api_address.removesuffix("/v1")

    @property
    def api_key(self) -> str:
        """The bearer token that requests must carry."""
        return self._model.api_key

    @property
    def generate_kwargs(self) -> dict[str, Any]:
        """Sampling of the model, as arguments of an OpenAI client's call."""
        sampling = self._model.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
        }

    @property
    def model_config(self) -> ModelConfig:
        """The part of the model's configuration that workflows may read."""
        sampling, limits = self._model.sampling, self._model.limits
        return ModelConfig(
            name=self._model.name or None,
            model_path=self._path,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            logprobs=sampling.logprobs,
            max_model_len=limits.max_model_len,
            max_prompt_tokens=limits.max_prompt_tokens,
            max_response_tokens=sampling.max_tokens,
            min_response_tokens=limits.min_tokens,
            enable_prompt_truncation=limits.truncate_prompts,
            enable_openai_api=self._model.has_api,
        )

    config = model_config

    def get_message_token_len(self, messages: Sequence[Any]) -> TokenCount:
        """Returns the number of tokens of a chat as a prompt; it may be awaited."""
        return TokenCount(self._model.get_message_token_len(messages))

    def get_openai_client(self) -> "openai.OpenAI":
        """Returns the blocking OpenAI client of this model; its calls are recorded."""
        if self._client is None:
            self._client = self._model.get_openai_client()
        return self._client

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """Returns the asynchronous OpenAI client of this model; its calls are recorded."""
        if self._async_client is None:
            self._async_client = self._model.get_openai_async_client()
        return self._async_client

    async def set_workflow_state(self, state: dict[str, Any]) -> None:
        """Keeps what a workflow says of its state."""
        self.workflow_state.update(state)

    async def get_workflow_state(self) -> dict[str, Any]:
        """Returns what the workflow has said of its state."""
        return dict(self.workflow_state)

    async def clean_workflow_state(self) -> None:
        """Forgets the state and the history."""
        self.workflow_state = {}
        self._model.extract_experience_from_history()

    def _known(self, made: Sequence[Experience]) -> list[Experience]:
        """Returns what the workflow has, or now gets, of answers of the engine."""
        for answer in made:
            if id(answer) not in self._answers:
                self._answers[id(answer)] = (answer, _copied(answer))
        return [self._answers[id(answer)][1] for answer in made]

    async def _chat(self, messages: Sequence[Any], kwargs: dict[str, Any]) -> list[Experience]:
        if isinstance(messages, str):
            raise UserError(
                "`chat` was given a text: give it messages, `[{'role': 'user', 'content': text}]`, "
                "or call `generate`; rows may hold messages in the prompt column"
            )
        n, tools, overrides = _split(kwargs)
        return await self._model.chat_async(list(messages), n=n, tools=tools, **overrides)

    async def _generate(
        self, prompts: str | Sequence[Any], kwargs: dict[str, Any]
    ) -> list[Experience]:
        n, _, overrides = _split(kwargs)
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        return await self._model.generate_async(given, n=n, **overrides)

    async def _logprobs(self, tokens: Any, temperature: float | None) -> FloatArray:
        return await self._model.logprobs_async([int(token) for token in tokens], temperature)

    async def _convert(
        self, messages: Sequence[Any], tools: Sequence[Any] | None, temperature: float | None
    ) -> Experience:
        said = Transcript(list(messages), list(tools or []), temperature)
        samples = await transcript_samples(
            self._model, [answer for answer, _ in self.answers], said
        )
        first, *further = [_copied(sample) for sample in samples]
        for sample in (first, *further):
            sample.messages = list(messages)
        first.further = further
        return first


def _copied(made: Experience) -> Experience:
    """Returns an answer that may be changed: the engine's own is kept."""
    copied = made.copied()
    copied.origin = made
    return copied


async def _value(value: ValueT) -> ValueT:
    return value


def _as_tensor(values: Any) -> Any:
    import torch  # only for those who use it

    return torch.from_numpy(values)


def _split(kwargs: dict[str, Any]) -> tuple[int, list[Any], SamplingOverrides]:
    """Returns the number of answers, the tools, and the sampling of a call.

    Raises: UserError for an argument that would change the answer and cannot be given here.
    """
    given = {name: value for name, value in kwargs.items() if value is not None}
    n, tools = int(given.pop("n", 1)), list(given.pop("tools", []))
    if "max_completion_tokens" in given:
        given["max_tokens"] = given.pop("max_completion_tokens")
    if isinstance(given.get("stop"), str):
        given["stop"] = [given["stop"]]
    given = {name: value for name, value in given.items() if name not in WITHOUT_EFFECT}
    if unknown := sorted(given.keys() - OVERRIDES):
        raise UserError(
            f"a call of the model has `{'`, `'.join(unknown)}`, which it does not take: it takes "
            f"n, tools, {', '.join(sorted(OVERRIDES))}"
        )
    if isinstance(given.get("logprobs"), bool):
        given["logprobs"] = int(given["logprobs"])
    overrides: Any = given
    return n, tools, overrides


def run_own_loop(call: Call[ValueT]) -> ValueT:
    """Runs a coroutine on a loop of this thread's own."""
    return asyncio.run(call())
