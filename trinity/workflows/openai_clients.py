"""OpenAI clients for the address of an attempt at a run."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.errors import UserError

if TYPE_CHECKING:
    import openai

MISSING = "the package `openai` is missing: install it beside the explorer"


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
        raise UserError(MISSING) from error
    openai_client = OpenAI(base_url=access.address, api_key=access.key, max_retries=0, timeout=None)
    openai_client.model_path = access.model_path  # type: ignore[attr-defined]
    return openai_client


def async_client(access: ApiAccess) -> "openai.AsyncOpenAI":
    """Returns an asynchronous client, for workflows with `is_async`; see `client`."""
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise UserError(MISSING) from error
    openai_client = AsyncOpenAI(
        base_url=access.address, api_key=access.key, max_retries=0, timeout=None
    )
    openai_client.model_path = access.model_path  # type: ignore[attr-defined]
    return openai_client
