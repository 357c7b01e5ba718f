"""Images: bytes of an encoded file, named by their hash; decoding, references and places in chats.

    image = image_of(content)             # checked; `image.ref` has hash, size and media type
    decode(image.content)                 # a PIL image in RGB, for rollout and training alike
    {"type": "image", "sha256": "...", "size": 68, "media_type": "image/png"}   # part_of(image.ref)

Rows, messages, samples and wires refer to an image by such a part. Its bytes are in the buffer.
"""

import base64
import binascii
import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote_to_bytes

from trinity.data.conversations import IMAGE as IMAGE
from trinity.data.conversations import PART_KINDS, SHA256_BYTES, has_hash
from trinity.data.conversations import is_image_part as is_image_part
from trinity.data.conversations import parts_of as parts_of
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.types import BlobRef

if TYPE_CHECKING:
    from PIL import Image

MAX_IMAGE_BYTES = 32 * 1024 * 1024
MAX_IMAGE_PIXELS = 64 * 1024 * 1024
"""Decoded, they take 192 MiB; Pillow warns from 85 million on."""
MAX_ASPECT = 200
"""The processors of Qwen's models refuse longer images."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Others may start programs, as EPS does, or fetch files that they refer to."""
LINKS = ("http://", "https://")
REFERRING = ("path", "image", "image_url", "url")
"""Keys under which an object refers to an image."""
DATA_URL = "data:image/"
_DATA = re.compile(r"data:[^,]{0,200},", re.IGNORECASE)
_SHOWN = 40

ReadFile = Callable[[Path], bytes]
"""Returns the content of a file that a row names. Raises: UserError; OSError."""


class BadImage(UserError):
    """An image that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The bytes of an image's file, which were decoded once as a check."""

    content: bytes
    ref: BlobRef


class MediaReader(Protocol):
    """Reads images of one tenant by their SHA-256."""

    async def read(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the contents by hash.

        Raises: PreconditionFailed when one of them is not in use there; Unavailable.
        """


def read_image_file(path: Path) -> bytes:
    """Returns the content of a file, one byte more than an image may have at most."""
    with path.open("rb") as stream:
        return stream.read(MAX_IMAGE_BYTES + 1)


def decode(content: bytes) -> "Image.Image":
    """Returns the first frame in RGB, turned as EXIF says, transparent pixels over white.

    Modes are converted as `qwen_vl_utils` does: only RGBA has transparent pixels.

    Raises: BadImage.
    """
    return _decoded(content)[0]


def image_of(content: bytes) -> EncodedImage:
    """Returns the image of a file's content.

    Raises: BadImage.
    """
    media_type = _decoded(content)[1]
    sha256 = hashlib.sha256(content).digest()
    return EncodedImage(
        content, BlobRef(name=IMAGE, sha256=sha256, size=len(content), media_type=media_type)
    )


def _decoded(content: bytes) -> tuple["Image.Image", str]:
    from PIL import Image, ImageOps, UnidentifiedImageError  # for rows and chats with images only

    if len(content) > MAX_IMAGE_BYTES:
        raise BadImage(
            f"it has {len(content):,} bytes, an image may have {MAX_IMAGE_BYTES:,}: make it smaller"
        )
    too_large = (Image.DecompressionBombError, Image.DecompressionBombWarning)
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            _check_size(*opened.size)
            turned = ImageOps.exif_transpose(opened)
            return _to_rgb(turned), Image.MIME[opened.format or "PNG"]
    except UnidentifiedImageError as error:
        raise BadImage(_unidentified(content)) from error
    except too_large as error:
        raise BadImage(f"{error}: make it smaller") from error
    except BadImage:
        raise
    except Exception as error:  # the edge of a library that parses whatever it is given
        raise BadImage(f"it is broken or cut off ({error}): replace it") from error


def _check_size(width: int, height: int) -> None:
    if width * height > MAX_IMAGE_PIXELS:
        raise BadImage(
            f"it has {width:,} x {height:,} pixels, an image may have {MAX_IMAGE_PIXELS:,}: "
            "make it smaller"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise BadImage(
            f"it has {width:,} x {height:,} pixels, and no side may be more than {MAX_ASPECT} "
            "times the other: cut it into parts"
        )


def _to_rgb(image: "Image.Image") -> "Image.Image":
    from PIL import Image

    if image.mode != "RGBA":
        return image.convert("RGB")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image.getchannel("A"))
    return white


def _unidentified(content: bytes) -> str:
    start = content[:_SHOWN].lstrip()
    if not content:
        return "it is empty: replace it"
    if start.startswith(b"<"):
        return f"it is no image but a page or text, {start.decode(errors='replace')!r}: replace it"
    return f"it is no image in one of the formats {', '.join(FORMATS)}: convert it"


def part_of(ref: BlobRef) -> JsonObject:
    """Returns the content part that refers to an image."""
    return {
        "type": IMAGE,
        "sha256": ref.sha256.hex(),
        "size": ref.size,
        "media_type": ref.media_type,
    }


def ref_of(part: object) -> BlobRef | None:
    """Returns the image that a content part refers to by its hash; None for any other part."""
    if not has_hash(part):
        return None
    assert isinstance(part, Mapping)
    sha256 = bytes.fromhex(part["sha256"])
    return BlobRef(name=IMAGE, sha256=sha256, size=part["size"], media_type=part["media_type"])


def images_of(messages: Sequence[Mapping[str, object]]) -> list[BlobRef]:
    """Returns the images of a chat, in the order of their parts."""
    parts = [part for message in messages for part in parts_of(message.get("content"))]
    return [ref for ref in map(ref_of, parts) if ref is not None]


def content_of(value: object, read_file: Callable[[str], bytes]) -> bytes:
    """Returns the content that a value refers to.

    It is bytes, a data URL, a path, an image of `datasets` (`bytes` and `path`), or a content part.

    Raises: BadImage for any other value, and for links, which are not fetched.
    """
    match value:
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case str():
            return _content_of_text(value, read_file)
        case {"bytes": bytes() | bytearray() | memoryview() as content}:
            return bytes(content)
        case {"image_url": {"url": str(text)}}:
            return _content_of_text(text, read_file)
    if isinstance(value, Mapping):
        for key in REFERRING:
            if value.get(key) is not None:
                return content_of(value[key], read_file)
    if callable(getattr(value, "save", None)):  # a PIL image, which has no name without Pillow
        return encoded(value)
    raise BadImage(
        f"{str(value)[:_SHOWN]!r} is no image: give bytes, a path or a data URL, or an object with "
        "`bytes` or `path`"
    )


def with_data_urls(messages: Sequence[Any]) -> list[Any]:
    """Returns a chat as JSON can hold it: PIL images in its parts become data URLs."""

    def plain(part: Any) -> Any:
        image = part.get(IMAGE) if is_image_part(part) else None
        if not callable(getattr(image, "save", None)):
            return part
        text = base64.b64encode(encoded(image)).decode()
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}

    return _with_parts(messages, plain)


def with_hashes(messages: Sequence[Any]) -> list[Any]:
    """Returns a chat whose images are parts with their hashes, as it is when it was asked.

    Raises: BadImage.
    """

    def hashed(part: Any) -> Any:
        if not is_image_part(part) or has_hash(part):
            return part
        return part_of(image_of(content_of(part, no_file)).ref)

    return _with_parts(messages, hashed)


def no_file(path: str) -> bytes:
    """Raises: BadImage."""
    raise BadImage(f"{path[:_SHOWN]!r} is a path, and chats read none: give the image itself")


def _with_parts(messages: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
    return [
        {**message, "content": [change(part) for part in parts]}
        if isinstance(message, dict) and (parts := parts_of(message.get("content")))
        else message
        for message in messages
    ]


def opened(image: EncodedImage) -> "Image.Image":
    """Returns a decoded image that keeps its content, by which `encoded` knows it again."""
    made = decode(image.content)
    made.encoded = image.content, _pixels(made)  # type: ignore[attr-defined]
    return made


def encoded(image: Any) -> bytes:
    """Returns the content of a PIL image: the one that it was decoded from if it is unchanged."""
    content, pixels = getattr(image, "encoded", (b"", b""))
    if content and pixels == _pixels(image):
        return bytes(content)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()


def _pixels(image: "Image.Image") -> bytes:
    about = f"{image.mode}{image.size}".encode()
    return hashlib.blake2b(about + image.tobytes(), digest_size=SHA256_BYTES).digest()


def _content_of_text(text: str, read_file: Callable[[str], bytes]) -> bytes:
    if text.lower().startswith("data:"):
        return content_of_data_url(text)
    if text.lower().startswith(LINKS):
        raise BadImage(f"{text[:_SHOWN]!r} is a link, which is not fetched: give the image itself")
    path = text.removeprefix("file://")
    try:
        return read_file(path)
    except (OSError, ValueError) as error:
        raise BadImage(f"the file {path[:200]!r} cannot be read: {error}") from error


def content_of_data_url(text: str) -> bytes:
    """Returns the bytes of a data URL.

    Raises: BadImage.
    """
    head = _DATA.match(text)
    if head is None:
        raise BadImage(f"{text[:_SHOWN]!r} is no data URL: write data:image/png;base64,...")
    body = text[head.end() :]
    if len(body) > 2 * MAX_IMAGE_BYTES:
        raise BadImage(f"it is longer than {MAX_IMAGE_BYTES:,} bytes: make it smaller")
    if not head[0].lower().endswith(";base64,"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise BadImage(f"its base64 is broken ({error}): encode it again") from error


class RowImages:
    """Takes the images out of rows: each reference becomes a part with the hash.

    images = RowImages("images", read_file, keep=store)
    row = images.taken({"prompt": "<image>How many?", "images": ["a.png"]}, "d.jsonl:1")
    """

    def __init__(
        self,
        column: str | None,
        read_file: ReadFile,
        keep: Callable[[EncodedImage], None] = lambda _: None,
    ) -> None:
        """`column` holds images; parts of messages are found in all columns.

        Without a `column`, only data URLs are taken: those of parts, and columns of nothing else.
        `keep` gets each image once.
        """
        self._column = column
        self._read_file = read_file
        self._keep = keep
        self._known: set[bytes] = set()
        self.folder = Path()
        """The folder of the rows, to which paths are relative."""

    def taken(self, row: object, where: str) -> object:
        """Returns the row with parts for its images.

        Raises: UserError that names the row and the column of an image that cannot be used.
        """
        if not isinstance(row, dict):
            return row
        made: dict[str, object] = {}
        for name, value in row.items():
            try:
                made[name] = (self._of_column if self._is_own(name, value) else self._replaced)(
                    value
                )
            except UserError as error:
                raise UserError(f"{where}, column {name!r}: {error}") from error
        return made

    def _is_own(self, name: str, value: object) -> bool:
        if self._column is not None:
            return name == self._column
        return bool(value) and all(map(_has_data_url, _listed(value)))

    def _is_given(self, part: Mapping[str, object]) -> bool:
        """Returns true for a part that brings an image, to be taken out or refused."""
        if self._column is None:
            return "sha256" in part or _has_data_url(part)
        keys = (*PART_KINDS, "sha256", "bytes", "path", "url")
        return any(part.get(key) is not None for key in keys)

    def _of_column(self, value: object) -> JsonValue:
        if value is None or value == "":
            return []
        return [self._part(own, f"image {place}") for place, own in enumerate(_listed(value))]

    def _replaced(self, value: object) -> object:
        if isinstance(value, str):
            return self._replaced_in_text(value)
        if isinstance(value, list | tuple):
            return [self._replaced(own) for own in value]
        if not isinstance(value, Mapping):
            return value
        if is_image_part(value) and self._is_given(value):
            return self._part(value, "an image of a message")
        return {key: self._replaced(own) for key, own in value.items()}

    def _replaced_in_text(self, text: str) -> object:
        """Returns the messages of a JSON text if they have images, else the text."""
        if not text.startswith("[") or not any(f'"{kind}"' in text for kind in PART_KINDS):
            return text
        try:
            messages = json.loads(text)
        except (ValueError, RecursionError):
            return text
        replaced = self._replaced(messages)
        return text if replaced == messages else replaced

    def _part(self, value: object, which: str) -> JsonObject:
        if isinstance(value, Mapping) and "sha256" in value:
            raise BadImage(f"{which} is given by a hash, which is no right to it: give the image")
        try:
            image = image_of(content_of(value, self._read))
        except UserError as error:
            raise BadImage(f"{which}: {error}") from error
        if image.ref.sha256 not in self._known:
            self._known.add(image.ref.sha256)
            self._keep(image)
        return part_of(image.ref)

    def _read(self, path: str) -> bytes:
        return self._read_file(self.folder / path)


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else [value]


def _has_data_url(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(_has_data_url(value.get(key)) for key in REFERRING)
    return isinstance(value, str) and value[: len(DATA_URL)].lower() == DATA_URL
