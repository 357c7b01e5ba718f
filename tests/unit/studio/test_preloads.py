"""Scripts of the first page's parts are named with the page."""

import json
import re
from pathlib import Path

import pytest
from starlette.types import Message, Receive, Scope, Send

from trinity.studio.preloads import MANIFEST, STATIC, Preloads, preload_header

PART = "../lib/src/components/widgets/BidiComponent/BidiComponent.tsx"
SOURCES = {
    "index.html": {"file": "static/js/index.js", "imports": ["_react.js"]},
    "_react.js": {"file": "static/js/react.js"},
    PART: {"file": "static/js/Bidi.js", "imports": ["_react.js", "_own.js"]},
    "_own.js": {"file": "static/js/own.js"},
    "Other.tsx": {"file": "static/js/Other.js"},
}


def test_the_parts_with_their_imports_are_named_but_for_what_the_page_loads_itself(
    tmp_path: Path,
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(SOURCES))
    assert preload_header(manifest) == (
        b"</static/js/Bidi.js>; rel=modulepreload, </static/js/own.js>; rel=modulepreload"
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"index.html": 3}'])
def test_another_manifest_names_nothing(tmp_path: Path, content: str) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(content)
    assert preload_header(manifest) == b""
    assert preload_header(tmp_path / "none.json") == b""


def test_the_installed_streamlit_has_the_files_that_are_named() -> None:
    named = re.findall(r"<(/[^>]+)>", preload_header(MANIFEST).decode())
    assert any("BidiComponent" in name for name in named)
    assert all((STATIC / name.lstrip("/")).is_file() for name in named)


@pytest.mark.parametrize(
    ("kind", "has_header"), [(b"text/html; charset=utf-8", True), (b"text/javascript", False)]
)
async def test_pages_alone_have_the_header(kind: bytes, has_header: bool) -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "headers": [(b"content-type", kind)]})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {}

    await Preloads(app, header=b"</a.js>")({"type": "http"}, receive, send)
    assert ((b"link", b"</a.js>") in sent[0]["headers"]) == has_header
