"""JSON responses and errors in the format of OpenAI's API, and the application that sends them."""

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from trinity.errors import UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.types import JsonObject

if TYPE_CHECKING:
    from aiohttp import web

_limited = RateLimitedLog(logging.getLogger(__name__))

INVALID = "invalid_request_error"
MAX_SHOWN_CHARACTERS = 200
Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]


class InvalidApiRequest(ValueError):
    """The request is refused as the text says; `param` is the key, `code` one of OpenAI's."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = INVALID,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.param = param
        self.code = code
        self.status = status


def bearer_token(request: "web.Request") -> str:
    """Returns the key or token of a request; empty if it has none.

    The scheme may be written in any case (RFC 9110, 11.1); characters that are not text are
    replaced.
    """
    scheme, _, bearer = request.headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() != "bearer":
        return ""
    return bearer.strip().encode(errors="replace").decode()


def json_response(body: JsonObject, status: int = 200) -> "web.Response":
    """Returns a JSON response."""
    from aiohttp import web

    return web.json_response(body, status=status)


def error_response(
    status: int, kind: str, message: str, *, param: str | None = None, code: str | None = None
) -> "web.Response":
    """Returns an error response, from which clients raise their own exceptions."""
    return json_response(error_body(kind, message, param=param, code=code), status)


def error_body(
    kind: str, message: str, *, param: str | None = None, code: str | None = None
) -> JsonObject:
    """Returns the body of an error, also for an answer that has already begun."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def response_for_error(error: Exception) -> "web.Response":
    """Returns the response to a failed request; unexpected errors are only logged, not shown."""
    match error:
        case InvalidApiRequest():
            return error_response(
                error.status, error.kind, str(error), param=error.param, code=error.code
            )
        case ValueError() | UserError():  # out of the engine's bounds
            return error_response(400, INVALID, str(error))
        case TimeoutError():
            return error_response(504, "timeout_error", "the answer took too long", code="timeout")
    _limited.error("a request to the OpenAI-compatible address failed", error)
    return error_response(500, "server_error", "the engine did not answer: see explorer's log")


def new_application() -> "web.Application":
    """Returns an application without routes; errors of the HTTP server itself are JSON as well."""
    from aiohttp import web

    return web.Application(middlewares=[web.middleware(_json_errors_middleware)])


async def _json_errors_middleware(request: "web.Request", handler: Handler) -> "web.StreamResponse":
    from aiohttp import web

    try:
        return await handler(request)
    except web.HTTPException as error:
        text = f"{request.method} {request.path[:MAX_SHOWN_CHARACTERS]}: {error.reason}"
        return error_response(error.status, INVALID, text)
    except ConnectionError:
        raise
    except Exception as error:  # the edge: without it, aiohttp answers in words
        return response_for_error(error)
