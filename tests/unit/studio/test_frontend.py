"""Files of the frontend come from memory, its page names scripts; all else is Streamlit's."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from trinity.studio.frontend import MANIFEST, MAX_BYTES, STATIC, Frontend, preload_header

PART = "../lib/src/components/widgets/BidiComponent/BidiComponent.tsx"
SOURCES = {
    "index.html": {"file": "static/js/index.js", "imports": ["_react.js"]},
    "_react.js": {"file": "static/js/react.js"},
    PART: {"file": "static/js/Bidi.js", "imports": ["_react.js", "_own.js"]},
    "_own.js": {"file": "static/js/own.js"},
    "Other.tsx": {"file": "static/js/Other.js"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "js").mkdir()
    (tmp_path / "js" / "a.hash.js").write_text("export {}")
    (tmp_path / "js" / "large.js").write_bytes(b" " * (MAX_BYTES + 1))
    (tmp_path / "secret.txt").write_text("no")
    return tmp_path


async def answer(
    folder: Path, path: str, method: str = "GET", *, gone: Path | None = None, **headers: str
) -> list[Message]:
    async def streamlit(scope: Scope, _: Receive, send: Send) -> None:
        kind = b"text/html; charset=utf-8" if scope["path"] == "/page" else b"text/plain"
        headers = [(b"content-type", kind)]
        await send({"type": "http.response.start", "status": 299, "headers": headers})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {}

    scope: dict[str, Any] = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    served = Frontend(streamlit, folder=folder)
    if gone is not None:
        await asyncio.to_thread(gone.unlink)
    await served(scope, receive, send)
    return sent


async def test_a_script_comes_whole_and_is_kept_by_the_browser(folder: Path) -> None:
    start, body = await answer(folder, "/static/js/a.hash.js")
    headers = dict(start["headers"])
    assert (start["status"], body["body"]) == (200, b"export {}")
    assert headers[b"content-type"] == b"text/javascript; charset=utf-8"
    assert headers[b"content-length"] == b"9"
    assert b"immutable" in headers[b"cache-control"]


@pytest.mark.parametrize(
    "path",
    [
        "/static/secret.txt",
        "/static/js/large.js",
        "/static/js/none.js",
        "/static/../static/js/a.hash.js",
        "/static/js/",
        "/js/a.hash.js",
        "/",
    ],
)
async def test_all_else_is_streamlits(folder: Path, path: str) -> None:
    [start] = await answer(folder, path)
    assert start["status"] == 299


async def test_parts_and_heads_are_streamlits(folder: Path) -> None:
    for asked in (
        await answer(folder, "/static/js/a.hash.js", "HEAD"),
        await answer(folder, "/static/js/a.hash.js", range="bytes=0-3"),
    ):
        assert asked[0]["status"] == 299


async def test_a_file_that_has_gone_is_streamlits(folder: Path) -> None:
    gone = folder / "js" / "a.hash.js"
    [start] = await answer(folder, "/static/js/a.hash.js", gone=gone)
    assert start["status"] == 299


async def test_the_entry_of_the_installed_frontend_is_served() -> None:
    entry = next((STATIC / "static" / "js").glob("index.*.js"))
    start, body = await answer(STATIC / "static", f"/static/js/{entry.name}")
    assert (start["status"], body["body"]) == (200, entry.read_bytes())


def test_parts_with_their_imports_are_named_but_for_those_that_the_page_loads_itself(
    tmp_path: Path,
) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(json.dumps(SOURCES))
    assert preload_header(manifest) == (
        "</static/js/Bidi.js>; rel=modulepreload, </static/js/own.js>; rel=modulepreload"
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"index.html": 3}'])
def test_another_manifest_names_nothing(tmp_path: Path, content: str) -> None:
    manifest = tmp_path / "manifest.json"
    manifest.write_text(content)
    assert preload_header(manifest) == ""
    assert preload_header(tmp_path / "none.json") == ""


def test_the_installed_streamlit_has_the_files_that_are_named() -> None:
    named = re.findall(r"<(/[^>]+)>", preload_header(MANIFEST))
    assert any("BidiComponent" in name for name in named)
    assert all((STATIC / name.lstrip("/")).is_file() for name in named)


async def test_the_page_names_parts_and_has_our_script_first(folder: Path) -> None:
    start, body = await answer(folder, "/page")
    assert (start["status"], dict(start["headers"])[b"link"]) == (200, preload_header().encode())
    assert body["body"].index(b"<script") == body["body"].index(b"<head>") + len(b"<head>")
