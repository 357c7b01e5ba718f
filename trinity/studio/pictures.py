"""Small pictures of a sample's images, made here: a browser gets no file that a client sent."""

import asyncio
import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from trinity.data.images import BadImage, decode
from trinity.data.media import read_media
from trinity.errors import PreconditionFailed
from trinity.runtime.rpc.errors import translate_rpc_errors
from trinity.studio.connection import OpenRun
from trinity.studio.plain_text import plain_text
from trinity.types import BlobRef

MAX_SHOWN = 8
THUMBNAIL_PIXELS = 128
_FIGURE = (
    '<figure style="margin: 0; max-width: 12rem; overflow-wrap: anywhere">{picture}'
    '<figcaption style="font-size: 0.75rem">{label}</figcaption></figure>'
)


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """One image of a sample."""

    label: str
    """About it, or why it cannot be shown."""
    content: bytes
    """A small PNG; empty for an image that cannot be shown."""


async def pictures_of(opened: OpenRun, images: Sequence[BlobRef]) -> tuple[Thumbnail, ...]:
    """Returns the first `MAX_SHOWN` images, in the order of their places in the prompt."""
    shown = images[:MAX_SHOWN]
    if not shown:
        return ()
    try:
        with translate_rpc_errors("buffer"):
            hashes = {image.sha256 for image in shown}
            contents = await read_media(opened.buffer, opened.tenant, hashes)
    except PreconditionFailed as error:
        return (Thumbnail(str(error), b""),)
    return tuple(
        [
            await asyncio.to_thread(_picture, place, image, contents[image.sha256])
            for place, image in enumerate(shown)
        ]
    )


def _picture(place: int, image: BlobRef, content: bytes) -> Thumbnail:
    try:
        decoded = decode(content)
    except BadImage as error:
        return Thumbnail(f"image {place}: {error}", b"")
    size = f"{decoded.width:,} x {decoded.height:,}"
    decoded.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    stream = io.BytesIO()
    decoded.save(stream, "PNG")
    about = f"{size}, {image.media_type}, {image.size:,} bytes, {image.sha256.hex()[:12]}"
    return Thumbnail(f"image {place}: {about}", stream.getvalue())


def show_pictures(pictures: Sequence[Thumbnail], num_images: int) -> None:
    """Shows pictures side by side, each with its label."""
    st.html(escaped_figures(pictures))
    if num_images > MAX_SHOWN:
        st.text(f"{MAX_SHOWN} of {num_images:,} images are shown.")


def escaped_figures(pictures: Sequence[Thumbnail]) -> str:
    """Returns the HTML of pictures, whose labels are untrusted."""
    figures = []
    for picture in pictures:
        label = html.escape(plain_text(picture.label))
        url = base64.b64encode(picture.content).decode()
        image = f'<img src="data:image/png;base64,{url}" alt="{label}">' if url else ""
        figures.append(_FIGURE.format(picture=image, label=label))
    return f'<div style="display: flex; flex-wrap: wrap; gap: 0.75rem">{"".join(figures)}</div>'
