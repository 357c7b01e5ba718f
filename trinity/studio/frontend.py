"""Streamlit's frontend: its files from memory, and its page with our script and preloads.

The first page asks for some sixty files at once. Streamlit hands each of them to threads several
times, which takes longer than all the rest where other programs run, too. Its scripts ask for the
parts of a page one after the other, when they draw them; a header lets the browser fetch these
while it waits for the page's content.
"""

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATIC = Path(streamlit.__file__).parent / "static"
MANIFEST = STATIC / "manifest.json"
"""The frontend's list of its files, by their sources."""
ENTRY = "index.html"
FIRST_PARTS = ("elements/Html/Html.tsx", "widgets/BidiComponent/BidiComponent.tsx")
"""Ends of the sources of the parts that the first page draws."""
HTML = b"text/html"
TYPES = {".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2"}
PREFIX = "/static/"
MAX_BYTES = 1_000_000
"""Larger files are left to Streamlit, as the first page needs only smaller ones."""
MAX_KEPT = 128
FOR_EVER = {"cache-control": "public, immutable, max-age=31536000"}
"""The name of a file holds a hash of its content."""
OWN_SCRIPT = Path(__file__).parent / "components" / "page_key.js"
OWN_PATH = "/trinity_page_key.js"
HEAD = b"<head>"


class Frontend:
    """ASGI middleware that answers for files of the frontend, and passes on all else.

    Where Streamlit answers with its page, it sends the page with our script before all others.
    """

    def __init__(
        self, app: ASGIApp, *, folder: Path = STATIC / "static", manifest: Path = MANIFEST
    ) -> None:
        self._app = app
        self._files = {
            PREFIX + file.relative_to(folder).as_posix(): file
            for file in folder.rglob("*")
            if file.suffix in TYPES and file.is_file() and file.stat().st_size <= MAX_BYTES
        }
        self._files[OWN_PATH] = OWN_SCRIPT
        script = b'%s<script src="%s"></script>' % (HEAD, OWN_PATH.encode())
        page = (STATIC / ENTRY).read_bytes().replace(HEAD, script, 1)
        assert script in page, "Streamlit's page has no head"
        headers = {"cache-control": "no-cache", "link": preload_header(manifest)}
        self._page = Response(page, headers=headers, media_type="text/html")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or passes it on."""
        file = self._files.get(scope["path"]) if _asks_for_all(scope) else None
        body = _content(file) if file is not None else None
        if file is None or body is None:
            await self._pass_on(scope, receive, send)
            return
        answer = Response(body, headers=FOR_EVER, media_type=TYPES[file.suffix])
        await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_page = False

        async def send_own_page(message: Message) -> None:
            nonlocal is_page
            if message["type"] == "http.response.start" and _is_html(message):
                is_page = True
                await self._page(scope, receive, send)
            elif not is_page:
                await send(message)

        await self._app(scope, receive, send_own_page)


def preload_header(manifest: Path = MANIFEST) -> str:
    """Returns the value of the header `link`; empty where the frontend has other files."""
    try:
        sources: Mapping[str, Mapping[str, Any]] = json.loads(manifest.read_bytes())
        parts = [name for name in sources if name.endswith(FIRST_PARTS)]
        known = _with_imports(sources, [ENTRY])
        files = [
            str(sources[name]["file"])
            for name in _with_imports(sources, parts)
            if name not in known
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""  # the page is drawn all the same, a little later
    return ", ".join(f"</{file}>; rel=modulepreload" for file in files)


def _with_imports(
    sources: Mapping[str, Mapping[str, Any]], names: Iterable[str]
) -> dict[str, None]:
    """Returns the sources and all that they import."""
    found: dict[str, None] = {}
    left = list(names)
    while left:
        name = left.pop()
        if name not in found:
            found[name] = None
            left += sources[name].get("imports", [])
    return found


def _is_html(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(HTML)
        for name, value in start.get("headers", ())
    )


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
