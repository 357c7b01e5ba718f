"""The scripts and fonts of Streamlit's frontend, served from memory, and its page with our script.

The first page asks for some sixty files at once. Streamlit hands each of them to threads several
times, which takes longer than all the rest where other programs run, too.
"""

from functools import lru_cache
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trinity.studio.preloads import ENTRY, STATIC, is_html

TYPES = {".js": b"text/javascript; charset=utf-8", ".css": b"text/css; charset=utf-8"}
TYPES |= {".woff2": b"font/woff2"}
PREFIX = "/static/"
MAX_BYTES = 1_000_000
"""Larger files are left to Streamlit: none is of the first page."""
MAX_KEPT = 128
FOR_EVER = b"public, immutable, max-age=31536000"
"""The name of a file holds a hash of its content."""
OWN_SCRIPT = Path(__file__).parent / "components" / "page_key.js"
OWN_PATH = "/trinity_page_key.js"
HEAD = b"<head>"


class StaticFiles:
    """ASGI middleware that answers for files of the frontend, and passes on all else.

    Where Streamlit answers with its page, it sends the page with our script before all others.
    """

    def __init__(self, app: ASGIApp, *, folder: Path = STATIC / "static") -> None:
        self._app = app
        self._files = {
            PREFIX + file.relative_to(folder).as_posix(): file
            for file in folder.rglob("*")
            if file.suffix in TYPES and file.is_file() and file.stat().st_size <= MAX_BYTES
        }
        self._files[OWN_PATH] = OWN_SCRIPT
        script = b'%s<script src="%s"></script>' % (HEAD, OWN_PATH.encode())
        self._page = (STATIC / ENTRY).read_bytes().replace(HEAD, script, 1)
        assert script in self._page, "Streamlit's page has no head"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        file = self._files.get(scope["path"]) if _asks_for_all(scope) else None
        body = _content(file) if file is not None else None
        if file is None or body is None:
            await self._pass_on(scope, receive, send)
            return
        await _answer(send, TYPES[file.suffix], body, FOR_EVER)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = False

        async def send_own_page(message: Message) -> None:
            nonlocal is_page
            if message["type"] == "http.response.start" and is_html(message):
                is_page = True
                await _answer(send, b"text/html; charset=utf-8", self._page, b"no-cache")
            elif not is_page:
                await send(message)

        await self._app(scope, receive, send_own_page)


async def _answer(send: Send, kind: bytes, body: bytes, caching: bytes) -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", caching),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _asks_for_all(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET":
        return False
    return all(name.lower() != b"range" for name, _ in scope["headers"])


@lru_cache(MAX_KEPT)
def _content(file: Path) -> bytes | None:
    """Returns the file's content; None if it is not there any more."""
    try:
        return file.read_bytes()
    except OSError:
        return None
