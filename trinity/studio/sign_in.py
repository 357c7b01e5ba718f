"""The sign-in page, on which a browser beyond this machine sends its token, and its limits."""

import asyncio
import html
from urllib.parse import parse_qs

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response

PATH = "/sign-in"
FIELD = "token"
MAX_BODY_BYTES = 16 * 1024
BODY_SECONDS = 20.0
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    # Under `no-referrer` a browser would send the form with the origin `null`.
    "referrer-policy": "same-origin",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
}
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


def sign_in_page(problem: str = "") -> Response:
    """Returns the page, with one sentence about what did not work."""
    shown = f'<p role="alert">{html.escape(problem)}</p>\n' if problem else ""
    page = _PAGE.format(problem=shown, path=PATH, field=FIELD)
    return HTMLResponse(page, 401, HEADERS)


async def sent_token(request: Request) -> str:
    """Returns the token of a form; empty if it is missing, too long or too slow."""
    body = b""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    return ""
        form = parse_qs(body.decode("ascii"), max_num_fields=4)
    except (TimeoutError, ValueError, ClientDisconnect):
        return ""
    tokens = form.get(FIELD, [])
    return tokens[0] if len(tokens) == 1 else ""
