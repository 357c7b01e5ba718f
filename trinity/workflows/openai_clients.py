"""Clients of the OpenAI-compatible address that an attempt at a run has."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trinity.errors import UserError

if TYPE_CHECKING:
    import openai

MISSING = "the package `openai` is missing: install it beside the explorer"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Where one attempt reaches the model, and by which key."""

    address: str
    """Begins with http:// and ends with /v1."""
    key: str
    model_path: str


def client(access: ApiAccess) -> "openai.OpenAI":
    """A client that blocks, for workflows in a thread; a call that fails is not made again.

    Raises: UserError when the package is not there.
    """
    try:
        from openai import OpenAI
    except ImportError as error:
        raise UserError(MISSING) from error
    made = OpenAI(base_url=access.address, api_key=access.key, max_retries=0, timeout=None)
    made.model_path = access.model_path  # type: ignore[attr-defined]
    return made


def async_client(access: ApiAccess) -> "openai.AsyncOpenAI":
    """The same for workflows with `is_async`."""
    try:
        from openai import AsyncOpenAI
    except ImportError as error:
        raise UserError(MISSING) from error
    made = AsyncOpenAI(base_url=access.address, api_key=access.key, max_retries=0, timeout=None)
    made.model_path = access.model_path  # type: ignore[attr-defined]
    return made
