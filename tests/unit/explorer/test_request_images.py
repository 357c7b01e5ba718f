"""Images of requests: hashes in every dialect, and links that lead nowhere they must not."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import openai
import pytest
from aiohttp import web

from services.explorer.openai_api.chat import read_request
from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.images import RequestImages, is_public
from services.explorer.openai_api.messages import MessagesExchange
from services.explorer.openai_api.response_input import KeptChats
from services.explorer.openai_api.responses import ResponsesExchange
from services.explorer.openai_api.server import AttemptApiServer
from services.explorer.openai_api.session import Session
from tests.support.images import BAD, data_url, png
from tests.unit.explorer.offering import ROLLOUT
from tests.unit.workflows.scripted import ScriptedEngine, TurnTokenizer, scripted_model
from trinity.data.conversations import text_of_content
from trinity.data.images import image_of, images_of, part_of
from trinity.types import BlobRef, JsonObject
from trinity.workflows.answers import message_digests
from trinity.workflows.generation import Prompt
from trinity.workflows.messages import Message

CONTENT = png()
URL = data_url(CONTENT)
PART = part_of(image_of(CONTENT).ref)
BASE64 = {"type": "base64", "media_type": "image/png", "data": URL.partition(",")[2]}
HOST = "images.example"


def text(own: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": own}


async def chat_of(parts: list[Any], images: RequestImages | None = None) -> Any:
    """The content of a message whose parts are these."""
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    taken, _ = await (images or RequestImages()).taken(body)
    return read_request(taken).messages[0]["content"]


def linked(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def test_every_dialect_has_the_hash_in_place_of_the_image() -> None:
    assert await chat_of([linked(URL), text("How many?")]) == [PART, text("How many?")]
    assert await chat_of([text("a"), text("b")]) == "ab"
    result = {
        "type": "tool_result",
        "tool_use_id": "1",
        "content": [{"type": "image", "source": BASE64}],
    }
    said = [text("How many?"), {"type": "image", "source": BASE64}]
    call = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    messages = [
        {"role": "user", "content": said},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, *said]},
    ]
    body: Any
    body, images = await RequestImages().taken({"max_tokens": 9, "messages": messages})
    asked: Any = MessagesExchange(body).chat["messages"]
    assert [image.content for image in images] == [CONTENT] * 3
    assert [message["content"] for message in asked] == [
        [text("How many?"), PART],
        "",
        [PART],
        [text("How many?"), PART],
    ]
    seen = {"type": "input_image", "image_url": URL}
    items = [
        {"role": "user", "content": [text("How many?", "input_text"), seen]},
        {"role": "user", "content": "Look."},
        {"type": "function_call_output", "call_id": "1", "output": [seen]},
    ]
    body, _ = await RequestImages().taken({"input": items})
    exchange = ResponsesExchange(body, KeptChats())
    asked = exchange.chat["messages"]
    assert [message["content"] for message in asked] == [
        [text("How many?"), PART, text("Look.")],
        [PART],
    ]
    assert "base64" not in str(exchange.going_on)


@pytest.mark.parametrize(
    ("part", "sentence"),
    [
        (linked(data_url(BAD["page.png"][0])), "no image but a page"),
        (linked("file:///etc/passwd"), "no data URL"),
        (linked(f"https://{HOST}/a.png"), "are not fetched: .*allowed_media_domains"),
        ({"type": "image", "sha256": PART["sha256"]}, "neither a URL nor base64"),
        (PART, "neither a URL nor base64"),
        ({"type": "input_image", "file_id": "1"}, "neither a URL nor base64"),
        ({"type": "video_url", "video_url": {"url": URL}}, "neither a text nor an image"),
    ],
)
async def test_what_is_no_image_to_take_is_named_by_its_place(part: Any, sentence: str) -> None:
    with pytest.raises(InvalidApiRequest, match=rf"`messages\[0\].content.*{sentence}"):
        await chat_of([text("a"), part])


@pytest.fixture
async def server() -> AsyncIterator[int]:
    """The port of a host of images."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/moved":
            raise web.HTTPFound("/a.png")
        return web.Response(body=CONTENT)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield runner.addresses[0][1]
    await runner.cleanup()


def resolving(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """A name that leads to one address after the other; answers the lookups."""
    asked: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[Any]:
        asked.append(host)
        address = addresses[min(len(asked), len(addresses)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return asked


async def test_a_link_to_a_named_host_is_fetched_once_resolved(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = resolving(monkeypatch, "127.0.0.1", "10.0.0.1")
    images = RequestImages([HOST], allows=lambda address: address == "127.0.0.1")
    found = await chat_of([linked(f"http://{HOST}:{server}/a.png")], images)
    assert (found, asked) == ([PART], [HOST])


async def test_a_link_leads_to_no_private_address_and_no_other_place(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, "127.0.0.1")
    hosts = [HOST, "127.0.0.1", "localhost", "[::1]", "::1"]
    for host in ("127.0.0.1", "[::1]"):
        with pytest.raises(InvalidApiRequest, match="leads to a private address"):
            await chat_of([linked(f"http://{host}:{server}/a.png")], RequestImages(hosts))
    with pytest.raises(InvalidApiRequest, match=f"'{HOST}' leads to a private address"):
        await chat_of([linked(f"http://{HOST}:{server}/a.png")], RequestImages(hosts))
    images = RequestImages(hosts, allows=lambda address: address == "127.0.0.1")
    with pytest.raises(InvalidApiRequest, match="answers 302, and redirects are not followed"):
        await chat_of([linked(f"http://{HOST}:{server}/moved")], images)


def test_addresses_of_networks_apart_are_private() -> None:
    private = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1", "::ffff:10.0.0.1"]
    assert not any(map(is_public, private)) and is_public("93.184.215.14")


def test_chats_with_other_images_are_other_chats() -> None:
    def digest(*parts: object) -> bytes:
        return message_digests([Message(role="user", content=[*parts])])[-1]  # type: ignore[typeddict-item]

    other = part_of(image_of(png((1, 1, 1))).ref)
    assert digest(text("a"), PART) != digest(text("a"), other)
    assert message_digests([Message(role="user", content="a")])[-1] == digest(text("a"))


class Sink:
    """Keeps what is stored."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    async def put(self, content: bytes) -> BlobRef:
        self.contents.append(content)
        return image_of(content).ref


class Seeing(TurnTokenizer):
    """Encodes the texts of chats, and notes their images."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[BlobRef] = []

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[JsonObject] = ()) -> Prompt:
        self.seen += images_of(messages)
        texts = [{**own, "content": text_of_content(own["content"])} for own in messages]
        return super().encode_chat(cast("list[Message]", texts), tools)


async def test_images_of_a_session_are_stored_and_its_turns_name_them() -> None:
    api = AttemptApiServer(model_path="m", rollout=ROLLOUT, tokenizer=TurnTokenizer())
    await api.start_api()
    model, tokenizer, session = scripted_model(ScriptedEngine(["two", "two"])), Seeing(), Session()
    model._tokenizer = tokenizer
    model.enable_api(api.register_attempt(model, session))
    said: Any = [{"role": "user", "content": [linked(URL), text("How many?")]}]
    try:
        async with model.get_openai_async_client() as client:
            with pytest.raises(openai.BadRequestError, match="this model takes texts alone"):
                await client.chat.completions.create(model="m", messages=said)
            model.media = sink = Sink()
            await client.chat.completions.create(model="m", messages=said)
    finally:
        await api.stop_api()
    [turn] = session.tree.turns.values()
    assert (sink.contents, tokenizer.seen) == ([CONTENT], [image_of(CONTENT).ref])
    assert images_of(turn.messages) == [image_of(CONTENT).ref]
    assert "base64" not in str(turn)
