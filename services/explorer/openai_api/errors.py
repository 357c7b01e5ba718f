"""JSON responses and errors in the format of OpenAI's API, and the application that sends them."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from trinity.errors import UserError
from trinity.runtime.logs import RateLimitedLog
from trinity.types import JsonObject

_limited = RateLimitedLog(logging.getLogger(__name__))

INVALID = "invalid_request_error"
CONTEXT_LENGTH = "context_length_exceeded"
MESSAGES_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's kinds of errors, by status."""
MAX_SHOWN_CHARACTERS = 200
Answer: TypeAlias = Callable[[Request, Send], Awaitable[Response | None]]
"""Answers a request; returns None if it has sent the answer itself."""


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


class OpenAiEnding:
    """The ends of OpenAI's own streams."""

    end_mark = b"[DONE]"

    def error_event(self, body: JsonObject) -> JsonObject:
        """Returns an error as the last event."""
        return body


def json_response(body: JsonObject, status: int = 200) -> Response:
    """Returns a JSON response; Starlette's own fails at half of a surrogate pair."""
    return Response(json.dumps(body), status, media_type="application/json")


def error_response(
    status: int, kind: str, message: str, *, param: str | None = None, code: str | None = None
) -> Response:
    """Returns an error response, from which clients raise their own exceptions."""
    return json_response(error_body(kind, message, param=param, code=code), status)


def error_body(
    kind: str, message: str, *, param: str | None = None, code: str | None = None
) -> JsonObject:
    """Returns the body of an error, also for an answer that has already begun."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def messages_error(status: int, error: JsonObject) -> JsonObject:
    """Returns the body of an error as Anthropic's clients read it, from OpenAI's `error`."""
    text = str(error["message"])
    if error["code"] == CONTEXT_LENGTH:
        text = f"prompt is too long: {text}"  # agents look for these words, and shorten their chat
    kind = MESSAGES_ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": text}}


def in_dialect(request: Request, response: Response) -> Response:
    """Returns a response; an error in the form that the client of the request reads."""
    if response.status_code < 400 or not (
        "anthropic-version" in request.headers or "/v1/messages" in request.scope["path"]
    ):
        return response
    error = json.loads(bytes(response.body))["error"]
    return json_response(messages_error(response.status_code, error), response.status_code)


def response_for_error(error: Exception) -> Response:
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


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """Answers the requests of one route; what fails is an error of OpenAI's, too."""

    answer: Answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        request = Request(scope, receive)
        try:
            response = await self.answer(request, send)
        except ConnectionError:  # the client has gone
            raise
        except Exception as error:  # the edge: without it, uvicorn answers in words
            response = response_for_error(error)
        if response is not None:
            await in_dialect(request, response)(scope, receive, send)


def new_application(routes: Mapping[str, Answer]) -> Starlette:
    """Returns an application with routes such as `GET /health`; other requests get JSON as well."""
    app = Starlette(
        routes=[
            Route(route.partition(" ")[2], _Endpoint(answer), methods=[route.partition(" ")[0]])
            for route, answer in routes.items()
        ],
        exception_handlers={HTTPException: _refused},
    )
    app.router.redirect_slashes = False
    return app


def not_http(text: str) -> Response:
    """Returns the answer to a request that is not HTTP/1.1."""
    return error_response(400, INVALID, f"this is not a request of HTTP/1.1: {text}")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"][:MAX_SHOWN_CHARACTERS]
    text = f"{request.method} {path}: {error.detail}"
    return in_dialect(request, error_response(error.status_code, INVALID, text))
