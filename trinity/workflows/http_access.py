"""Access to a model over HTTP, for agents that use their own client."""

from typing import TYPE_CHECKING

from trinity.errors import UserError
from trinity.workflows import openai_clients
from trinity.workflows.openai_clients import ApiAccess

if TYPE_CHECKING:
    import openai


class HttpAccess:
    """A part of `ModelWrapper`; the model has no address until `offer_api` is called."""

    _api: ApiAccess | None = None

    def offer_api(self, access: ApiAccess) -> None:
        """Makes the model available over HTTP too."""
        self._api = access

    @property
    def api(self) -> ApiAccess:
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
        return self.api.address

    @property
    def api_key(self) -> str:
        """The bearer token that requests must carry."""
        return self.api.key

    @property
    def model_path(self) -> str:
        """The model's name in requests."""
        return self.api.model_path

    def get_openai_client(self) -> "openai.OpenAI":
        """Returns a blocking OpenAI client whose calls belong to this run."""
        return openai_clients.client(self.api)

    def get_openai_async_client(self) -> "openai.AsyncOpenAI":
        """Returns an asynchronous OpenAI client whose calls belong to this run."""
        return openai_clients.async_client(self.api)
