"""Scripts that the first page needs later, named to the browser with the page itself.

Streamlit's frontend asks for the parts of a page one after the other, when it draws them. A header
lets the browser fetch these while it waits for the page's content.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import streamlit
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATIC = Path(streamlit.__file__).parent / "static"
MANIFEST = STATIC / "manifest.json"
"""The frontend's list of its files, by their sources."""
ENTRY = "index.html"
FIRST_PARTS = ("elements/Html/Html.tsx", "widgets/BidiComponent/BidiComponent.tsx")
"""Ends of the sources of what the first page draws."""
HTML = b"text/html"


def preload_header(manifest: Path = MANIFEST) -> bytes:
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
        return b""  # the page is drawn all the same, a little later
    return ", ".join(f"</{file}>; rel=modulepreload" for file in files).encode()


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


class Preloads:
    """ASGI middleware that adds the header to pages."""

    def __init__(self, app: ASGIApp, *, header: bytes) -> None:
        self._app = app
        self._header = header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on."""

        async def send_with_header(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if is_html(message):
                    message = {**message, "headers": [*headers, (b"link", self._header)]}
            await send(message)

        is_page = scope["type"] == "http" and self._header
        await self._app(scope, receive, send_with_header if is_page else send)


def is_html(start: Message) -> bool:
    """Returns true for the beginning of an answer that is a page."""
    return any(
        name.lower() == b"content-type" and value.startswith(HTML)
        for name, value in start.get("headers", ())
    )
