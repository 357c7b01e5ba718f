"""The page on which a browser beyond this machine shows its token, and what it may send there."""

import asyncio
import html
from urllib.parse import parse_qs

from starlette.types import Message, Receive, Send

PATH = "/sign-in"
FIELD = "token"
MAX_BODY_BYTES = 16 * 1024
BODY_SECONDS = 20.0
HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # Under `no-referrer` a browser would send the form with the origin `null`.
    (b"referrer-policy", b"same-origin"),
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; "
        b"frame-ancestors 'none'",
    ),
)
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Trinity Studio</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 1rem/1.5 sans-serif; max-width: 36rem; margin: 4rem auto; padding: 0 1rem; }}
textarea, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; }}
textarea {{ font-family: monospace; height: 6rem; }}
[role=alert] {{ border-left: .25rem solid #b3261e; padding-left: .75rem; }}
</style></head>
<body><main><h1>Trinity Studio</h1>
{problem}<form method="post" action="{path}">
<label for="{field}">Your token, with the scope <code>read</code> (<code>trinity token</code> \
makes one)</label>
<textarea id="{field}" name="{field}" autocomplete="off" spellcheck="false" required></textarea>
<button>Sign in</button></form></main></body></html>
"""


def sign_in_page(problem: str = "") -> bytes:
    """Returns the page, with one sentence about what did not work."""
    shown = f'<p role="alert">{html.escape(problem)}</p>\n' if problem else ""
    return _PAGE.format(problem=shown, path=PATH, field=FIELD).encode()


async def send_page(send: Send, status: int, problem: str = "") -> None:
    """Answers a request with the page."""
    start: Message = {"type": "http.response.start", "status": status, "headers": list(HEADERS)}
    await send(start)
    await send({"type": "http.response.body", "body": sign_in_page(problem)})


async def sent_token(receive: Receive) -> str:
    """Returns the token of a form; empty if there is none, or it is too long or too slow."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await _sent_token(receive)
    except TimeoutError:
        return ""


async def _sent_token(receive: Receive) -> str:
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return ""
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return ""
        if not message.get("more_body", False):
            break
    try:
        form = parse_qs(body.decode("ascii"), max_num_fields=4)
    except ValueError:
        return ""
    tokens = form.get(FIELD, [])
    return tokens[0] if len(tokens) == 1 else ""
