"""The gate in front of Studio: every request and websocket needs a cookie of this process.

The address that `trinity studio` prints holds a token that works once; the browser gets a cookie
for it, and the next token is announced. The page can start programs, so this holds on loopback too:
other users of the machine, and pages of other sites in the same browser, can reach the port.
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinity.security.loopback import is_loopback

TOKEN_PARAMETER = "token"
TOKEN_BYTES = 32
MAX_BROWSERS = 64
"""Cookies that are valid at once; the oldest is forgotten first."""
POLICY_VIOLATION = 1008
"""The code that a refused websocket is closed with."""
HOW_TO_ENTER = (
    "This browser has no access to Trinity Studio: open the address that `trinity studio` printed "
    "last in its terminal; each works once.\n"
)
WRONG_HOST = "Trinity Studio answers under the names of this machine's loopback only.\n"
WRONG_ORIGIN = "Trinity Studio takes no requests from pages of other sites.\n"
CLOSED_PATHS = ("/_stcore/agent", "/_stcore/metrics")
"""Beginnings of Streamlit's own paths that Studio does not use."""
NOT_HERE = "There is nothing here.\n"
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; script-src 'self' blob: 'unsafe-eval' 'wasm-unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; "
        "form-action 'self'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The policy lets the page load nothing from elsewhere. Charts compile their expressions."""


class Admission:
    """The tokens and cookies of one Studio process.

    A token is taken once, and each is followed by another. Nothing is kept on disk, so a restart
    shuts everyone out.

    admission = Admission(announce=print)
    cookie = admission.redeem(admission.token)
    assert admission.admits(cookie)
    """

    def __init__(self, *, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookies: OrderedDict[str, None] = OrderedDict()

    @property
    def token(self) -> str:
        """The token that works now."""
        return self._token

    def redeem(self, token: str) -> str | None:
        """Returns a new cookie for the token, or None if it is not the one that works now."""
        if not _is_same(token, self._token):
            return None
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        cookie = secrets.token_urlsafe(TOKEN_BYTES)
        self._cookies[cookie] = None
        while len(self._cookies) > MAX_BROWSERS:
            self._cookies.popitem(last=False)
        self._announce(self._token)
        return cookie

    def admits(self, cookie: str) -> bool:
        """Returns true if this process has issued the cookie."""
        return any(_is_same(cookie, known) for known in self._cookies)


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


class Gate:
    """ASGI middleware that refuses what has no cookie, before any of Streamlit's code sees it."""

    def __init__(self, app: ASGIApp, *, admission: Admission, cookie_name: str) -> None:
        self._app = app
        self._admission = admission
        self._cookie_name = cookie_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, redeems a token, or refuses."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        refusal = _refusal_of_sender(scope, headers)
        if refusal:
            await _refuse(scope, receive, send, 403, refusal)
        elif scope["path"].startswith(CLOSED_PATHS):
            await _refuse(scope, receive, send, 404, NOT_HERE)
        elif self._admission.admits(_cookie(headers, self._cookie_name)):
            await self._app(scope, receive, _with_security_headers(send))
        elif cookie := self._redeemed(scope):
            await _enter(scope, send, f"{self._cookie_name}={cookie}")
        else:
            await _refuse(scope, receive, send, 401, HOW_TO_ENTER)

    def _redeemed(self, scope: Scope) -> str | None:
        """Returns a cookie for the token in the address of a page that is opened."""
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] != "/":
            return None
        try:
            query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
        except ValueError:  # there are more
            return None
        tokens = query.get(TOKEN_PARAMETER, [])
        return self._admission.redeem(tokens[0]) if len(tokens) == 1 else None


def _headers(scope: Scope) -> dict[str, str]:
    """Returns the headers; one that is sent twice is joined, and then fits nothing."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        separator = "; " if key == "cookie" else ", "
        found[key] = f"{found[key]}{separator}{text}" if key in found else text
    return found


def _refusal_of_sender(scope: Scope, headers: dict[str, str]) -> str:
    """Returns the reason why a request cannot come from Studio's own page; empty if it can.

    A site may point its own name at 127.0.0.1: its requests come with that name as their host.
    """
    host = headers.get("host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return WRONG_HOST
    if not is_loopback(name):
        return WRONG_HOST
    origin = headers.get("origin")
    needs_origin = scope["type"] == "websocket"
    if origin is None:
        return WRONG_ORIGIN if needs_origin else ""
    return "" if urlsplit(origin).netloc == host else WRONG_ORIGIN


def _cookie(headers: dict[str, str], name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


async def _enter(scope: Scope, send: Send, cookie: str) -> None:
    """Sends the browser to the page without the token, which would stay in its history."""
    location = scope.get("root_path", "") + "/"
    await send(
        {
            "type": "http.response.start",
            "status": 303,
            "headers": [
                (b"location", location.encode()),
                (b"set-cookie", f"{cookie}; HttpOnly; SameSite=Strict; Path=/".encode()),
                (b"cache-control", b"no-store"),
                (b"referrer-policy", b"no-referrer"),
            ],
        }
    )
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": why.encode()})


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [(key.encode(), value.encode()) for key, value in SECURITY_HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with_headers
