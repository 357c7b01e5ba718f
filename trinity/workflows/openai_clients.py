"""OpenAI clients, and the address at which an attempt reaches its model."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.errors import UserError

if TYPE_CHECKING:
    import openai


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
