"""A model that others serve: an HTTP client as an engine, and a tokenizer of bytes for it."""

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from services.explorer.engine.interface import FixedWeights
from trinity.config.plan.parts import ExternalAccess
from trinity.errors import RolloutStageFailed, UserError
from trinity.runtime.logs import HIDDEN
from trinity.runtime.retry import RetryPolicy
from trinity.types import FinishReason, JsonObject, SamplingParams
from trinity.workflows.generation import (
    ANY_OBJECT,
    Generation,
    GenerationDelta,
    OnDelta,
    Prompt,
    Scores,
)
from trinity.workflows.messages import Message

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)
ValueT = TypeVar("ValueT")

END_TOKEN = 256
"""Greater than any byte."""
CONNECT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 0.25
MAX_PAUSE_SECONDS = 8.0
MAX_RETRY_AFTER_SECONDS = 30.0
"""Upper bound for the pause that a server asks for with Retry-After."""
MAX_QUOTED_CHARACTERS = 200
MAX_ANSWER_BYTES = 64 << 20
PERMANENT_ERRORS = {
    HTTPStatus.UNAUTHORIZED: "the key in {key}",
    HTTPStatus.FORBIDDEN: "the key in {key}",
    HTTPStatus.NOT_FOUND: "the address in {address}, or the model's name",
    HTTPStatus.METHOD_NOT_ALLOWED: "the address in {address}",
}
"""Answers that a retry does not change, and what to correct."""
RETRYABLE_STATUSES = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.CONFLICT, HTTPStatus.TOO_MANY_REQUESTS)


class ByteTokenizer:
    """Uses UTF-8 bytes as tokens; a prompt's are its messages as JSON, to be sent unchanged.

    They stand for the model's own tokens in experiences that are never trained on.
    """

    template_sha256 = hashlib.sha256(b"messages of a model that others serve").digest()

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        """Encodes the messages; the model continues a last one of the assistant.

        Raises: UserError for tools, which would have to be in the model's chat template.
        """
        if tools:
            raise UserError("a model that others serve is asked without `tools`")
        text = "".join(f"{message['role']}: {message['content'] or ''}\n" for message in messages)
        body = json.dumps(list(messages), ensure_ascii=False)
        return Prompt(text=text, token_ids=list(body.encode(errors="replace")))

    def encode(self, text: str) -> Prompt:
        """Encodes a text as one user message."""
        return self.encode_chat([Message(role="user", content=text)])

    def decode(self, token_ids: list[int]) -> str:
        """Decodes an answer, without its end token."""
        return bytes(token for token in token_ids if token < END_TOKEN).decode(errors="replace")


def decode_messages(prompt_token_ids: list[int]) -> list[Message]:
    """Returns the messages that a prompt was made of.

    Raises: UserError for other tokens, such as a workflow's own.
    """
    try:
        messages: list[Message] = json.loads(bytes(prompt_token_ids))
    except ValueError as error:
        raise UserError("a model that others serve is asked with text, not with tokens") from error
    return messages


def encode_answer(answer: str) -> list[int]:
    """Returns the tokens of an answer with an end token, which even an empty one has."""
    return [*answer.encode(errors="replace"), END_TOKEN]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalModelAccess:
    """Address and key of an external model; neither is shown in its repr."""

    source: ExternalAccess
    address: str = field(repr=False)
    key: str = field(repr=False)

    @property
    def name(self) -> str:
        """Name of the model at its server."""
        return self.source.model_name


def read_external_access(
    source: ExternalAccess, environment: Mapping[str, str]
) -> ExternalModelAccess:
    """Reads address and key; raises UserError when a variable is not set or is no address."""
    for name, what in ((source.base_url_env, "address"), (source.api_key_env, "key")):
        if not environment.get(name):
            raise UserError(
                f"the environment variable {name}, which holds the {what} of the model "
                f"`{source.model_name}`, is not set where the explorer runs: set it"
            )
    address, key = environment[source.base_url_env], environment[source.api_key_env]
    if not address.startswith(("http://", "https://")):
        raise UserError(
            f"the environment variable {source.base_url_env} holds no address that begins with "
            f"http:// or https://, where the model `{source.model_name}` is reached"
        )
    return ExternalModelAccess(source=source, address=address.rstrip("/"), key=key)


class RetryableError(Exception):
    """The request failed, and a retry may succeed."""

    def __init__(self, reason: str, pause_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.pause_seconds = pause_seconds


class ExternalEngine(FixedWeights):
    """An external model; its calls share one deadline, after which `check` raises
    RolloutStageFailed.

    Tokens are bytes (`ByteTokenizer`) without log-probabilities, so they are not trained on.
    Whether equal seeds give equal answers depends on the server.
    """

    def __init__(
        self,
        *,
        access: ExternalModelAccess,
        retry_policy: RetryPolicy,
        template_kwargs: JsonObject | None = None,
    ) -> None:
        self._access = access
        self._fields: JsonObject = (
            {"chat_template_kwargs": template_kwargs} if template_kwargs else {}
        )
        """Fields of each request that vLLM, SGLang and their like know."""
        self._retry_policy = retry_policy
        self._retry = retry_policy.new_retry(
            waits_for="external model", purpose=f"answer as `{access.name}`"
        )
        self._failed: RolloutStageFailed | None = None
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        min_tokens: int = 0,
        on_delta: OnDelta | None = None,
    ) -> Generation:
        """Returns the answer, retrying until the deadline; `on_delta` gets all of it.

        Raises: RolloutStageFailed when the model is given up, UserError if it rejects the request.
        """
        body = _request_body(self._access.name, prompt_token_ids, sampling, min_tokens)
        address = f"{self._access.address}/chat/completions"
        answer = await self._ask(address, body | self._fields, _parse_completion)
        if on_delta is not None:
            on_delta(GenerationDelta(token_ids=answer.token_ids, logprobs=answer.logprobs))
        return answer

    async def _ask(self, address: str, body: JsonObject, parse: Callable[[str], ValueT]) -> ValueT:
        """Returns the parsed answer, retrying until the deadline."""
        pause = FIRST_PAUSE_SECONDS
        while self._failed is None:
            try:
                answer = parse(await self._send(address, body))
            except RetryableError as error:
                await self._wait(error, pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
            else:
                self._retry.end()
                return answer
        raise self._failed

    async def score(
        self,
        token_ids: list[int],  # noqa: ARG002 the protocol's
        *,
        num_likeliest: int = 0,  # noqa: ARG002 the protocol's
    ) -> Scores:
        """Not supported: external models do not give log-probabilities of given tokens.

        Raises: UserError always.
        """
        raise UserError(
            f"the model `{self._access.name}`, which others serve, gives no log-probabilities of "
            "given tokens: use a model with its own engine"
        )

    async def check(self) -> None:
        """Raises RolloutStageFailed if the model was given up."""
        if self._failed is not None:
            raise self._failed

    async def close(self) -> None:
        """Closes the HTTP session."""
        self._retry.end()
        if self._session is not None:
            await self._session.close()

    async def _wait(self, error: RetryableError, pause: float) -> None:
        try:
            self._retry.record_failure(error)
        except RolloutStageFailed as given_up:
            self._failed = given_up
            raise
        await asyncio.sleep(max(pause, error.pause_seconds))

    async def _send(self, address: str, body: JsonObject) -> str:
        import aiohttp

        try:
            async with self._open_session().post(
                address,
                json=body,
                headers={"Authorization": f"Bearer {self._access.key}"},
                allow_redirects=False,  # it would take the key elsewhere
            ) as response:
                text = await _read_text(response)
                if response.status == HTTPStatus.OK:
                    return text
                raise self._error_of_response(
                    response.status, response.headers.get("Retry-After"), text
                )
        except aiohttp.InvalidURL as error:
            raise self._fail(f"cannot be asked at the address in {self._address}") from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise RetryableError(self._redacted(type(error).__name__)) from error

    def _open_session(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            limits = aiohttp.ClientTimeout(
                total=self._retry_policy.seconds, sock_connect=CONNECT_SECONDS
            )
            connector = aiohttp.TCPConnector(limit=0)
            self._session = aiohttp.ClientSession(timeout=limits, connector=connector)
        return self._session

    def _error_of_response(self, status: int, retry_after: str | None, text: str) -> Exception:
        """Returns the error for a status other than 200; only a rejected request is quoted."""
        if (wrong := _permanent_cause(status)) is not None:
            names = wrong.format(key=self._access.source.api_key_env, address=self._address)
            return self._fail(f"refuses to answer (HTTP {status}): correct {names}")
        if status in RETRYABLE_STATUSES or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return RetryableError(f"HTTP {status}", _retry_after_seconds(retry_after))
        quoted = self._redacted(" ".join(text.split()))[:MAX_QUOTED_CHARACTERS]
        return UserError(
            f"the model `{self._access.name}` does not take a request (HTTP {status}): {quoted}"
        )

    def _fail(self, why: str) -> RolloutStageFailed:
        self._failed = RolloutStageFailed(
            f"the model `{self._access.name}`, which others serve, {why}"
        )
        return self._failed

    def _redacted(self, text: str) -> str:
        return text.replace(self._access.key, HIDDEN)

    @property
    def _address(self) -> str:
        return self._access.source.base_url_env


async def _read_text(response: "aiohttp.ClientResponse") -> str:
    """Reads an answer as UTF-8, whatever charset it names: decoding some takes quadratic time.

    Raises: RetryableError for an answer that is too large.
    """
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > MAX_ANSWER_BYTES:
            raise RetryableError(f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
    return content.decode(errors="replace")


def _permanent_cause(status: int) -> str | None:
    if HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
        return "the address in {address}"
    return next((wrong for code, wrong in PERMANENT_ERRORS.items() if code == status), None)


def _request_body(
    name: str, prompt_token_ids: list[int], sampling: SamplingParams, min_tokens: int
) -> JsonObject:
    """Builds the request body: fields that all servers know, and others only where set."""
    return {
        "model": name,
        "messages": [
            {"role": message["role"], "content": message["content"]}
            for message in decode_messages(prompt_token_ids)
        ],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        **_optional_fields(sampling, min_tokens),
    }


def _optional_fields(sampling: SamplingParams, min_tokens: int) -> JsonObject:
    penalty = sampling.repetition_penalty
    fields: JsonObject = {
        "top_k": sampling.top_k if sampling.top_k > 0 else None,
        "min_p": sampling.min_p or None,
        "min_tokens": min_tokens or None,
        "presence_penalty": sampling.presence_penalty or None,
        "frequency_penalty": sampling.frequency_penalty or None,
        "repetition_penalty": penalty if penalty != 1.0 else None,
        "stop": list(sampling.stop) or None,
        "response_format": _response_format(sampling.json_schema),
    }
    return {key: value for key, value in fields.items() if value is not None}


def _response_format(schema: str) -> JsonObject | None:
    if not schema:
        return None
    if schema == ANY_OBJECT:
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(schema)}}


def _parse_completion(text: str) -> Generation:
    try:
        choice: dict[str, Any] = json.loads(text)["choices"][0]
        content = choice["message"]["content"] or ""
        reason = str(choice.get("finish_reason"))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise RetryableError("an answer that is no chat completion") from error
    return Generation(
        token_ids=encode_answer(str(content)),
        logprobs=[],
        finish_reason=FinishReason.LENGTH if reason == "length" else FinishReason.STOP,
    )


def _retry_after_seconds(retry_after: str | None) -> float:
    """Parses Retry-After in seconds; a date, which is allowed too, counts as 0."""
    try:
        return min(max(float(retry_after or 0), 0.0), MAX_RETRY_AFTER_SECONDS)
    except ValueError:
        return 0.0
