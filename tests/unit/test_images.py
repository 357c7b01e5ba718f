"""Images: decoded as the reference does, found in rows in every form, placed in chats, refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.images import BAD, data_url, png, saved
from trinity.data.conversations import BadConversation, parse_messages
from trinity.data.images import (
    MAX_IMAGE_BYTES,
    BadImage,
    EncodedImage,
    RowImages,
    content_of,
    decode,
    encoded,
    image_of,
    images_of,
    opened,
    part_of,
    read_image_file,
    ref_of,
)
from trinity.errors import UserError

CONTENT = png()
PART = part_of(image_of(CONTENT).ref)
OTHER = part_of(image_of(png((0, 0, 9))).ref)


def pixels(image: Image.Image) -> list[Any]:
    assert image.mode == "RGB"
    found: list[Any] = np.asarray(image).tolist()
    return found


def test_transparent_pixels_lie_over_white_and_other_modes_are_converted() -> None:
    half = Image.new("RGBA", (1, 1), (0, 0, 0, 128))
    assert pixels(decode(saved(half))) == [[[127, 127, 127]]]
    grey = Image.new("LA", (1, 1), (9, 0))
    assert pixels(decode(saved(grey))) == [[[9, 9, 9]]]
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    assert pixels(decode(saved(palette, transparency=1))) == [[[10, 20, 30]]]
    deep = Image.fromarray(np.array([[0, 7, 65535]], dtype=np.uint16))
    assert pixels(decode(saved(deep))) == pixels(deep.convert("RGB"))


def test_the_first_frame_counts_and_a_turned_photo_is_turned_back() -> None:
    frames = [Image.new("RGB", (2, 1), color) for color in ("red", "blue")]
    content = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert pixels(decode(content)) == [[[255, 0, 0]] * 2]
    photo = Image.new("RGB", (2, 1), "red")
    photo.putpixel((1, 0), (0, 0, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    turned = decode(saved(photo, "PNG", exif=exif))
    assert turned.size == (1, 2) and pixels(turned) == [[[255, 0, 0]], [[0, 0, 255]]]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_gets_one_sentence(name: str) -> None:
    content, sentence = BAD[name]
    with pytest.raises(BadImage, match=sentence):
        decode(content)


def test_a_large_file_is_not_decoded(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"0" * (MAX_IMAGE_BYTES + 9))
    content = read_image_file(file)
    assert len(content) == MAX_IMAGE_BYTES + 1
    with pytest.raises(BadImage, match="an image may have 33,554,432"):
        image_of(content)


@pytest.mark.parametrize(
    "value",
    [
        CONTENT,
        "a.png",
        data_url(CONTENT),
        {"bytes": CONTENT, "path": None},
        {"bytes": None, "path": "a.png"},
        {"type": "image", "image": "a.png"},
        {"type": "image", "image": {"bytes": CONTENT}},
        {"type": "image_url", "image_url": {"url": data_url(CONTENT), "detail": "low"}},
        {"type": "input_image", "image_url": data_url(CONTENT)},
        [data_url(CONTENT)],
    ],
)
def test_a_column_of_images_has_any_form(value: object, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(CONTENT)
    kept: list[EncodedImage] = []
    images = RowImages("images", read_image_file, kept.append)
    images.folder = tmp_path
    row = {"prompt": "<image>?", "images": value, "truth": None}
    assert images.taken(row, "d.jsonl:1") == {**row, "images": [PART]}
    images.taken(row, "d.jsonl:2")
    assert [image.content for image in kept] == [CONTENT]


def test_images_in_messages_are_found_and_texts_stay() -> None:
    images = RowImages("images", read_image_file)
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(CONTENT)}, "text": None},
        {"type": "text", "text": "How many?", "image_url": None},
    ]
    messages = [{"role": "user", "content": parts}]
    expected = [{"role": "user", "content": [PART, parts[1]]}]
    plain = {"note": '[1, "image"]', "none": None, "images": None}
    row = {"prompt": messages, "text": json.dumps(messages), **plain}
    taken: Any = images.taken(row, "r")
    assert taken == {"prompt": expected, "text": expected, **plain, "images": []}
    chat = parse_messages(taken["prompt"], taken["images"])
    assert chat[0]["content"] == [PART, {"type": "text", "text": "How many?"}]
    assert images_of(chat) == [ref_of(PART)]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("missing.png", "missing.png' cannot be read"),
        ("https://a.b/c.png", "is a link"),
        ("data:image/png;base64,a", "base64 is broken"),
        ("data:image/png;base64," + "PGh0bWw+", "no image but a page"),
        (PART, "given by a hash"),
        (7, "'7' is no image"),
        ([CONTENT, None], "1: 'None' is no image"),
    ],
)
def test_a_bad_image_is_named_by_row(value: object, sentence: str) -> None:
    with pytest.raises(UserError, match=f"^d.jsonl:3, column 'images': image .*{sentence}"):
        RowImages("images", read_image_file).taken({"images": value}, "d.jsonl:3")


def chat(content: object, images: list[Any]) -> Any:
    return parse_messages([{"role": "user", "content": content}], images)[0]["content"]


def text(own: str) -> dict[str, str]:
    return {"type": "text", "text": own}


def test_marks_and_empty_parts_take_images_in_order() -> None:
    assert chat("a<image>b<image>", [PART, OTHER]) == [text("a"), PART, text("b"), OTHER]
    parts = [{"type": "image"}, text("and <image>")]
    assert chat(parts, [PART, OTHER]) == [PART, text("and "), OTHER]
    assert chat("How many?", [PART]) == [PART, text("How many?")]
    assert chat("How many?", []) == "How many?"
    with pytest.raises(BadConversation, match="1 places for images and its row 2"):
        chat("<image>", [PART, OTHER])
    with pytest.raises(BadConversation, match=r"set `format\.image_key`"):
        parse_messages([{"role": "user", "content": [{"type": "image"}]}])
    with pytest.raises(BadConversation, match="'video', and prompts are texts and images"):
        chat([{"type": "video", "video": "a.mp4"}], [])


def test_an_unchanged_image_keeps_its_content_and_a_changed_one_is_encoded() -> None:
    photo = image_of(saved(NOISY, "JPEG"))
    image = opened(photo)
    assert encoded(image) == photo.content == content_of(image, lambda _: b"")
    small = image.resize((4, 4))
    assert pixels(decode(encoded(small))) == pixels(small)
    image.putpixel((0, 0), (1, 2, 3))
    assert pixels(decode(encoded(image)))[0][0] == [1, 2, 3]


NOISY = Image.effect_noise((32, 32), 50)
