"""The gate in front of Studio: every request and websocket needs a cookie of this process.

On loopback the address that `trinity studio` prints holds a token that works once; the browser gets
a cookie for it, and the next token is announced. The page can start programs, so this holds there
too: other users of the machine, and pages of other sites in the same browser, can reach the port.
Beyond loopback a browser signs in with a token of the system, and is let in until that expires.

Cookies have no port: a browser sends ours to every other server of the same host. So a websocket,
over which all actions come, also needs the page key. The browser gets it when it enters, behind the
`#` of the address, and keeps it in the storage of this site, which other ports cannot read.
"""

import hashlib
import hmac
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from http.cookies import CookieError, SimpleCookie
from urllib.parse import SplitResult, parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from trinity.errors import UserError
from trinity.runtime.security.loopback import is_loopback
from trinity.runtime.security.tokens import TokenKeys
from trinity.studio.frames import POLICY_VIOLATION, PageSocket
from trinity.studio.sign_in import PATH as SIGN_IN_PATH
from trinity.studio.sign_in import sent_token, sign_in_page
from trinity.studio.visitors import OWNER, Shares, Visitor, has_expired, visitor_of

TOKEN_PARAMETER = "token"
TOKEN_BYTES = 32
KEY_PROTOCOL = "trinity."
"""Begins the subprotocol in which a page shows its key; `components/page_key.js` knows it, too."""
MAX_BROWSERS = 64
"""Cookies that are valid at once; of the visitor with the most the oldest is forgotten first."""
HOW_TO_ENTER = (
    "This browser has no access to Trinity Studio: open the address that `trinity studio` printed "
    "last in its terminal; each works once.\n"
)
WRONG_HOST = (
    "Trinity Studio answers under the names of this machine's loopback only, and where it serves "
    "other machines under those of its certificate.\n"
)
WRONG_ORIGIN = "Trinity Studio takes no requests from pages of other sites.\n"
CLOSED_PATHS = ("/_stcore/agent", "/_stcore/metrics")
"""Beginnings of Streamlit's own paths that Studio does not use."""
UPLOAD_PATH = "/_stcore/upload_file"
"""Streamlit keeps in memory whatever is sent there, and however much of it."""
PROTOCOLS = "sec-websocket-protocol"
NOT_HERE = "There is nothing here.\n"
TOO_MANY = "You have asked Trinity Studio for too much at once: try again in a moment.\n"
NO_FILES = (
    "Files are taken with a token of the scope `submit`, by a Studio that was started with "
    "`--allow-changes`.\n"
)
HEALTH_PATH = "/healthz"
"""Answered without a cookie and under any name: a probe asks by the address of a container."""
EXPIRED = "Your token has expired: sign in with a new one."
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
"""The policy forbids the page to load from elsewhere. Charts compile their expressions."""


class Admission:
    """The visitors of one Studio process, by their cookies.

    The owner's token is taken once, and each is followed by another. With `keys` visitors sign in
    with tokens of the system instead, and there is no owner. Nothing is kept on disk, so a restart
    shuts everyone out.

    admission = Admission(announce=print)
    cookie = admission.redeem(admission.token)
    assert admission.admits(cookie)
    """

    def __init__(
        self,
        *,
        announce: Callable[[str], None],
        keys: TokenKeys | None = None,
        needs_all_tenants: bool = False,
    ) -> None:
        self._announce = announce
        self._needs_all_tenants = needs_all_tenants
        self._keys = keys
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._page_secret = secrets.token_bytes(TOKEN_BYTES)
        self._visitors: OrderedDict[str, Visitor] = OrderedDict()

    @property
    def token(self) -> str:
        """The token that works now."""
        return self._token

    @property
    def takes_tokens(self) -> bool:
        """True if visitors sign in with tokens of the system."""
        return self._keys is not None

    def redeem(self, token: str) -> str | None:
        """Returns a new cookie for the token, or None if it is not the one that works now."""
        if self.takes_tokens or not _is_same(token, self._token):
            return None
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        browser = replace(OWNER, name=f"owner {secrets.token_hex(4)}")  # with a separate share
        cookie = self._admit(browser)
        self._announce(self._token)
        return cookie

    def sign_in(self, token: str) -> str:
        """Returns a new cookie for a token of the system.

        Raises: UserError with one sentence about the token's error.
        """
        assert self._keys is not None, "visitors do not sign in here"
        return self._admit(self._visitor_of(self._keys, token))

    def visitor(self, cookie: str) -> Visitor | None:
        """Returns the visitor with the cookie, unless its token has expired or was withdrawn.

        Threads of pages ask too, while another browser signs in.
        """
        for known, visitor in tuple(self._visitors.items()):
            if _is_same(cookie, known):
                return visitor if self._is_valid(visitor) else None
        return None

    def admits(self, cookie: str) -> bool:
        """Returns true if this process has issued the cookie, and it is still valid."""
        return self.visitor(cookie) is not None

    def page_key(self, cookie: str) -> str:
        """Returns the key that pages need in addition to the cookie."""
        return hmac.new(self._page_secret, cookie.encode(), hashlib.sha256).hexdigest()

    def _is_valid(self, visitor: Visitor) -> bool:
        """Checks a visitor's token again: its key may have been taken back since."""
        if has_expired(visitor):
            return False
        if self._keys is None:
            return True
        try:
            self._visitor_of(self._keys, visitor.token)
        except UserError:
            return False
        return True

    def _visitor_of(self, keys: TokenKeys, token: str) -> Visitor:
        return visitor_of(keys, token, needs_all_tenants=self._needs_all_tenants)

    def _admit(self, visitor: Visitor) -> str:
        cookie = secrets.token_urlsafe(TOKEN_BYTES)
        self._visitors[cookie] = visitor
        if len(self._visitors) > MAX_BROWSERS:
            self._forget_one()
        return cookie

    def _forget_one(self) -> None:
        """Forgets a visitor that has expired, else the oldest of those with the most cookies.

        So a visitor who signs in again and again shuts out no other.
        """
        known = tuple(self._visitors.items())
        expired = [cookie for cookie, visitor in known if has_expired(visitor)]
        held = Counter(visitor.name for _, visitor in known)
        name, _ = held.most_common(1)[0]
        own = [cookie for cookie, visitor in known if visitor.name == name]
        del self._visitors[(expired or own)[0]]


def _is_same(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode(errors="replace"), known.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The names and the cookie under which Studio is served."""

    cookie_name: str
    names: frozenset[str] = frozenset()
    """Names beyond loopback, those of its certificate; `*.` stands for one label."""
    is_secure: bool = False

    def has_name(self, name: str) -> bool:
        """Returns true if Studio is served under the name."""
        lowered = name.lower().rstrip(".")
        any_label = f"*.{lowered.partition('.')[2]}"
        return is_loopback(name) or lowered in self.names or any_label in self.names

    def cookie(self, value: str) -> str:
        """Returns the header that gives a browser its cookie."""
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie_name}={value}; HttpOnly{secure}; SameSite=Strict; Path=/"


class Gate:
    """ASGI middleware that refuses requests without a cookie before Streamlit's code sees them."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        admission: Admission,
        site: Site,
        shares: Shares,
        allows_changes: bool = False,
    ) -> None:
        self._app = app
        self._admission = admission
        self._site = site
        self._shares = shares
        self._allows_changes = allows_changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Lets a request through, redeems a token, or refuses."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if scope["type"] == "http" and scope["path"] == HEALTH_PATH:
            await _refuse(scope, receive, send, 200, "Trinity Studio serves.\n")
            return
        headers = _headers(scope)
        refusal = _refusal_of_sender(scope, headers, self._site)
        if refusal:
            await _refuse(scope, receive, send, 403, refusal)
        elif scope["path"].startswith(CLOSED_PATHS):
            await _refuse(scope, receive, send, 404, NOT_HERE)
        elif scope["path"] != SIGN_IN_PATH and (
            visitor := self._admission.visitor(_cookie(headers, self._site.cookie_name))
        ):
            await self._let_in(visitor, headers, scope, receive, send)
        elif cookie := self._redeemed(scope):
            await self._enter(scope, receive, send, cookie)
        elif scope["type"] == "http" and self._admission.takes_tokens:
            await self._sign_in(scope, receive, send, headers)
        else:
            await _refuse(scope, receive, send, 401, HOW_TO_ENTER)

    async def _let_in(
        self, visitor: Visitor, headers: dict[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Passes a request or a websocket on, within the visitor's share."""
        share = self._shares.of(visitor)
        if scope["type"] == "websocket":
            key = self._admission.page_key(_cookie(headers, self._site.cookie_name))
            opened = _without_key(scope, headers, key)
            if opened is None or share.sockets.are_taken:
                await _refuse(scope, receive, send, 403, "")
                return
            with share.sockets:
                page = PageSocket(visitor, share, receive, send)
                await self._app(opened, page.receive, page.send)
        elif scope["path"].startswith(UPLOAD_PATH) and not self._takes_files_of(visitor):
            await _refuse(scope, receive, send, 403, NO_FILES)
        elif share.requests.are_taken:
            await _refuse(scope, receive, send, 429, TOO_MANY)
        else:
            with share.requests:
                await self._app(scope, receive, _with_security_headers(send))

    async def _enter(self, scope: Scope, receive: Receive, send: Send, cookie: str) -> None:
        """Sends the browser to the page without the token, which would stay in its history."""
        location = f"{scope.get('root_path', '')}/#key={self._admission.page_key(cookie)}"
        headers = {
            "location": location,
            "set-cookie": self._site.cookie(cookie),
            "cache-control": "no-store",
            "referrer-policy": "no-referrer",
        }
        await Response(None, 303, headers)(scope, receive, send)

    def _takes_files_of(self, visitor: Visitor) -> bool:
        return visitor.is_owner or (self._allows_changes and visitor.may_submit)

    async def _sign_in(
        self, scope: Scope, receive: Receive, send: Send, headers: dict[str, str]
    ) -> None:
        """Takes a token of the system, or asks for one."""
        if scope["method"] != "POST" or scope["path"] != SIGN_IN_PATH:
            known = self._site.cookie_name in headers.get("cookie", "")
            await sign_in_page(EXPIRED if known else "")(scope, receive, send)
            return
        if "origin" not in headers:
            await _refuse(scope, receive, send, 403, WRONG_ORIGIN)
            return
        try:
            cookie = self._admission.sign_in(await sent_token(Request(scope, receive)))
        except UserError as error:
            await sign_in_page(str(error))(scope, receive, send)
        else:
            await self._enter(scope, receive, send, cookie)

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
    """Returns the headers; one that is sent twice is joined, and then matches no valid value."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        separator = "; " if key == "cookie" else ", "
        found[key] = f"{found[key]}{separator}{text}" if key in found else text
    return found


def _refusal_of_sender(scope: Scope, headers: dict[str, str], site: Site) -> str:
    """Returns the reason why a request cannot come from Studio's own page; empty if it can.

    A site may point its own name at 127.0.0.1: its requests come with that name as their host.
    """
    host = headers.get("host", "")
    name = _split(f"//{host}").hostname or ""
    if not site.has_name(name):
        return WRONG_HOST
    origin = headers.get("origin")
    needs_origin = scope["type"] == "websocket"
    if origin is None:
        return WRONG_ORIGIN if needs_origin else ""
    return "" if _split(origin).netloc == host else WRONG_ORIGIN


def _split(address: str) -> SplitResult:
    """Returns the parts of an address, all empty if it is invalid."""
    try:
        return urlsplit(address)
    except ValueError:
        return SplitResult("", "", "", "", "")


def _cookie(headers: dict[str, str], name: str) -> str:
    try:
        morsel = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel is not None else ""


def _without_key(scope: Scope, headers: dict[str, str], key: str) -> Scope | None:
    """Returns the websocket as Streamlit may see it; None if it does not show the page key."""
    offered = [part.strip() for part in headers.get(PROTOCOLS, "").split(",")]
    kept = [part for part in offered if not part.startswith(KEY_PROTOCOL)]
    if not any(_is_same(part, f"{KEY_PROTOCOL}{key}") for part in offered):
        return None
    others = [
        (name, value) for name, value in scope["headers"] if name.lower() != PROTOCOLS.encode()
    ]
    shown = [(PROTOCOLS.encode(), ", ".join(kept).encode("latin-1"))] if kept else []
    return {**scope, "headers": [*others, *shown], "subprotocols": kept}


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, why: str) -> None:
    refusal: ASGIApp = WebSocketClose(POLICY_VIOLATION)
    if scope["type"] == "http":
        refusal = PlainTextResponse(why, status, {"cache-control": "no-store"})
    await refusal(scope, receive, send)


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            added = [(key.encode(), value.encode()) for key, value in SECURITY_HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", ()), *added]}
        await send(message)

    return send_with_headers
