"""How a model is reached over HTTP, by agents that bring a client of their own."""

from typing import TYPE_CHECKING

from trinity.errors import UserError
from trinity.workflows import openai_clients
from trinity.workflows.openai_clients import ApiAccess

if TYPE_CHECKING:
    import openai


class HttpAccess:
    """A part of `ModelWrapper`: nothing is offered until `offer_api` is called."""

    _api: ApiAccess | None = None

    def offer_api(self, access: ApiAccess) -> None:
        """Let this model be called over HTTP too."""
        self._api = access

    @property
    def api(self) -> ApiAccess:
        """Address and key of this attempt, for agents that bring a client of their own.

        Raises: UserError when the model is not called over HTTP.
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
        return self.api.address

    @property
    def api_key(self) -> str:
        """What requests must bring as a bearer token."""
        return self.api.key

    @property
    def model_path(self) -> str:
        """What requests call the model."""
        return self.api.model_path

    def get_openai_client(self) -> "openai.OpenAI":
        """An OpenAI client whose calls are those of this run; for workflows in a thread."""
        return openai_clients.client(self.api)

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """An asynchronous OpenAI client whose calls are those of this run."""
        return openai_clients.async_client(self.api)
