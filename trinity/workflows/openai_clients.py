"""OpenAI clients, and the address at which an attempt reaches its model."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from trinity.errors import UserError

if TYPE_CHECKING:
    import openai


T = TypeVar("T")


class AttemptOver(asyncio.CancelledError):
    """The attempt's time is over or its lease is lost, so its calls get no more tokens.

    It is not an Exception, so that it also ends a workflow that retries after any Exception.
    """

    def __init__(self) -> None:
        super().__init__("this attempt is over")


class AttemptCalls:
    """Registers the calls in progress of one attempt, on the event loop that makes them.

    After `close` no call begins, and those in progress are cancelled: the engine may hold other
    weights by then.

    calls = AttemptCalls()
    with calls.in_progress():
        generation = await generator.generate(...)
    await calls.close()
    """

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._pending: set[asyncio.Task[object]] = set()
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """True if the attempt is over."""
        return self._is_closed

    def require_open(self) -> None:
        """Raises AttemptOver after `close`."""
        if self._is_closed:
            raise AttemptOver

    @contextmanager
    def in_progress(self) -> Iterator[None]:
        """Registers the current task for the block's call of the engine; `close` may cancel it."""
        task = asyncio.current_task()
        assert task is not None
        self._pending.add(task)
        try:
            self.require_open()
            yield
        finally:
            self._pending.discard(task)

    def refuse(self) -> None:
        """Ends the attempt for calls that have not begun."""
        self._is_closed = True

    async def close(self) -> None:
        """Ends the attempt: cancels calls in progress and refuses new ones."""
        self.refuse()
        pending = list(self._pending)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)

    async def await_elsewhere(self, call: Coroutine[object, object, T]) -> T:
        """Awaits a call from another event loop, that of a workflow in a thread."""
        future = self._submitted(call)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and self._is_closed:
                raise AttemptOver from None
            future.cancel()
            raise

    def wait_in_thread(self, call: Coroutine[object, object, T]) -> T:
        """Waits for a call in a thread that is not the event loop's."""
        future = self._submitted(call)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise AttemptOver from None

    def _submitted(self, call: Coroutine[object, object, T]) -> "concurrent.futures.Future[T]":
        if self._is_closed:
            call.close()
            raise AttemptOver
        return asyncio.run_coroutine_threadsafe(call, self._loop)


OPENAI_MISSING = "the package `openai` is missing: install it beside the explorer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """The address at which one attempt reaches the model, and the key."""

    address: str
    """Begins with http:// and ends with /v1."""
    key: str
    model_path: str


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


class HttpModelAccess:
    """A part of `ModelWrapper`; the model has no address until `enable_api` is called."""

    _api: ApiAccess | None = None

    def enable_api(self, access: ApiAccess) -> None:
        """Makes the model available over HTTP too."""
        self._api = access

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
        """The base address of the API, up to /v1."""
        return self.api_access.address

    @property
    def api_key(self) -> str:
        """The bearer token that requests must carry."""
        return self.api_access.key

    @property
    def model_path(self) -> str:
        """The model's name in requests."""
        return self.api_access.model_path

    def get_openai_client(self) -> "openai.OpenAI":
        """Returns a blocking OpenAI client whose calls belong to this run."""
        return client(self.api_access)

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """Returns an asynchronous OpenAI client whose calls belong to this run."""
        return async_client(self.api_access)
