"""Images of requests: data URLs, and links to hosts that are allowed, become parts with hashes."""

import asyncio
import ipaddress
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from services.explorer.openai_api.errors import InvalidApiRequest
from trinity.data.conversations import text_part
from trinity.data.images import (
    LINKS,
    BadImage,
    EncodedImage,
    content_of_data_url,
    image_of,
    is_image_part,
    part_of,
    ref_of,
)
from trinity.types import JsonObject, JsonValue

MAX_IMAGES = 100
"""Images of one request."""


def is_public(address: str) -> bool:
    """Returns true for an address that is reached over the internet."""
    own = ipaddress.ip_address(address)
    mapped = own.ipv4_mapped if isinstance(own, ipaddress.IPv6Address) else None
    return (mapped or own).is_global


class RequestImages:
    """Takes the images out of the bodies of requests, in all dialects.

    body, images = await RequestImages(hosts=()).taken(body)
    """

    def __init__(
        self, hosts: Collection[str] = (), *, allows: Callable[[str], bool] = is_public
    ) -> None:
        """Links are fetched from these hosts, at addresses that `allows` returns true for."""
        self._hosts = frozenset(hosts)
        self._allows = allows

    async def taken(self, body: object) -> tuple[object, list[EncodedImage]]:
        """Returns the body with hashes in place of images, and the images.

        Raises: InvalidApiRequest that names the part.
        """
        if not isinstance(body, dict):
            return body, []
        images: list[EncodedImage] = []
        made = dict(body)
        for key in ("messages", "input"):
            if isinstance(said := body.get(key), list):
                made[key] = [
                    await self._replaced(item, f"{key}[{place}]", images)
                    for place, item in enumerate(said)
                ]
        return made, images

    async def _replaced(self, item: Any, where: str, images: list[EncodedImage]) -> Any:
        """Returns a message, or a result of a tool, with parts for its images."""
        made = dict(item) if isinstance(item, dict) else item
        for key in ("content", "output"):
            parts = made.get(key) if isinstance(made, dict) else None
            if not isinstance(parts, list):
                continue
            made[key] = [
                await self._image(part, f"{where}.{key}[{place}]", images)
                if is_image_part(part)
                else await self._replaced(part, f"{where}.{key}[{place}]", images)
                for place, part in enumerate(parts)
            ]
        return made

    async def _image(self, part: JsonObject, where: str, images: list[EncodedImage]) -> JsonObject:
        if len(images) == MAX_IMAGES:
            raise InvalidApiRequest(
                f"`{where}` is image {MAX_IMAGES + 1} of the request", param=where
            )
        try:
            content = await self._content(_url_of(part))
            image = await asyncio.to_thread(image_of, content)
        except BadImage as error:
            raise InvalidApiRequest(f"`{where}`: {error}", param=where) from error
        images.append(image)
        return part_of(image.ref)

    async def _content(self, url: str) -> bytes:
        if not url.lower().startswith(LINKS):
            return content_of_data_url(url)
        host = urlsplit(url).hostname or ""
        if host not in self._hosts:
            raise BadImage(
                f"links to {host!r} are not fetched: give a data URL, or name the host in "
                "`explorer.rollout_model.allowed_media_domains`"
            )
        from services.explorer.openai_api.image_links import fetch  # aiohttp, for links only

        return await fetch(url, host, self._allows)


def _url_of(part: JsonObject) -> str:
    """Returns the URL of an image in the forms of OpenAI's chats and responses and Anthropic's."""
    match part:
        case {"image_url": {"url": str(url)}} | {"image_url": str(url)}:
            return url
        case {"source": {"type": "base64", "media_type": str(kind), "data": str(data)}}:
            return f"data:{kind};base64,{data}"
        case {"source": {"type": "url", "url": str(url)}}:
            return url
    raise BadImage("it has neither a URL nor base64: give `image_url`, or `source`")


def said_of(value: JsonValue, where: str, joint: str = "") -> JsonValue:
    """Returns a text, of which parts may be given, or parts if there are images.

    Raises: InvalidApiRequest naming the place.
    """
    if isinstance(value, str):
        return value
    parts = value if isinstance(value, list) else [None]
    made: list[JsonObject] = []
    for part in parts:
        if isinstance(part, dict) and ref_of(part) is not None:
            made.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            made.append(text_part(str(part["text"])))
        else:
            raise InvalidApiRequest(
                f"`{where}` has a part that is neither a text nor an image", param=where
            )
    texts = [str(part["text"]) for part in made if part["type"] == "text"]
    return joint.join(texts) if len(texts) == len(made) else [*made]
