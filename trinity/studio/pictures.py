"""Small pictures of a sample's images, made here: a browser gets no file that a client sent."""

import asyncio
import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import streamlit as st

from trinity.data.images import BadImage, decode
from trinity.data.media import read_media
from trinity.errors import PreconditionFailed
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.studio.connection import OpenRun
from trinity.studio.plain_text import plain_text
from trinity.types import BlobRef

MAX_SHOWN = 32
THUMBNAIL_PIXELS = 128
_FIGURE = (
    '<figure style="margin: 0; max-width: 12rem; overflow-wrap: anywhere">{picture}'
    '<figcaption style="font-size: 0.75rem">{label}</figcaption></figure>'
)


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """One image of a sample."""

    label: str
    """About it, or why it cannot be shown; untrusted."""
    url: str = ""
    """A data URL of a small PNG; empty for an image that cannot be shown."""


async def pictures_of(opened: OpenRun, images: Iterable[BlobRef]) -> dict[BlobRef, Thumbnail]:
    """Returns the first `MAX_SHOWN` images, read one after the other, as files may be large."""
    shown = islice(dict.fromkeys(images), MAX_SHOWN)
    return {image: await _picture(opened, image) for image in shown}


async def _picture(opened: OpenRun, image: BlobRef) -> Thumbnail:
    try:
        with translate_rpc_errors("buffer"):
            contents = await read_media(opened.buffer, opened.tenant, [image.sha256])
        return await asyncio.to_thread(_thumbnail, image, contents[image.sha256])
    except (BadImage, PreconditionFailed) as error:
        return Thumbnail(plain_text(str(error)))


def _thumbnail(image: BlobRef, content: bytes) -> Thumbnail:
    decoded = decode(content)
    size = f"{decoded.width:,} x {decoded.height:,}"
    decoded.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    stream = io.BytesIO()
    decoded.save(stream, "PNG")
    about = f"{size}, {image.media_type}, {image.size:,} bytes, {image.sha256.hex()[:12]}"
    url = f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
    return Thumbnail(plain_text(about), url)


def show_pictures(pictures: Mapping[BlobRef, Thumbnail], images: Sequence[BlobRef]) -> None:
    """Shows the pictures of images side by side, each with its label."""
    shown = {place: pictures[own] for place, own in enumerate(images) if own in pictures}
    st.html(escaped_figures(shown))
    if len(shown) < len(images):
        st.text(f"{len(shown):,} of {len(images):,} images are shown.")


def escaped_figures(pictures: Mapping[int, Thumbnail]) -> str:
    """Returns the HTML of pictures by their places."""
    figures = []
    for place, picture in pictures.items():
        label = html.escape(f"image {place}: {picture.label}")
        image = f'<img src="{picture.url}" alt="{label}">' if picture.url else ""
        figures.append(_FIGURE.format(picture=image, label=label))
    return f'<div style="display: flex; flex-wrap: wrap; gap: 0.75rem">{"".join(figures)}</div>'
