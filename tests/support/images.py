"""Images as files: small good ones, and bad ones with the sentence about each."""

import base64
import io
import struct
import zlib
from collections.abc import Mapping

from PIL import Image


def png(color: tuple[int, ...] = (200, 30, 30), size: tuple[int, int] = (8, 6)) -> bytes:
    mode = "RGB" if len(color) == 3 else "RGBA"
    return saved(Image.new(mode, size, color))


def saved(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def declared(width: int, height: int) -> bytes:
    """A PNG of few bytes whose header names a size, and whose pixels are all zero."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    parts = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*part) for part in parts)


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


NOISE = Image.effect_noise((64, 64), 50)
BAD: Mapping[str, tuple[bytes, str]] = {
    "cut": (saved(NOISE)[:-600], "broken or cut off"),
    "cut.jpg": (saved(NOISE, "JPEG")[:-600], "broken or cut off"),
    "long": (declared(100_000, 1), "100,000 x 1 pixels"),
    "bomb": (declared(26_000, 26_000), "make it smaller"),
    "wide": (declared(9_000, 9_000), "9,000 x 9,000 pixels"),
    "page.png": (b"<!DOCTYPE html><html>404</html>", "no image but a page"),
    "empty": (b"", "empty"),
    "program": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image in one of the"),
}
"""Contents by name, each with a part of its sentence."""
