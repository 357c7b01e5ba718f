"""Messages and tools of a row, in the form that chat templates take.

    parse_messages([{"role": "user", "content": "1+1=", "tool_calls": None}])
    # [{"role": "user", "content": "1+1="}]

Rows say the same in several ways: a list or its JSON text, a content as text or as parts, nulls
that parquet writes for the fields of other messages, `from` and `value` as ShareGPT has them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject, JsonValue

CALLS = "tool_calls"
IMAGE = "image"
"""Name of an image among the blobs of a sample, and type of its parts."""
PART_KINDS = (IMAGE, "image_url", "input_image")
"""Types of content parts that hold an image, in the dialects of OpenAI, Qwen and `datasets`."""
FAMILIES: Mapping[str, str] = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
}
"""Kinds of models whose images are read, with the kinds of their language parts."""
SHA256_BYTES = 32
MARK = "<image>"
MEDIA_MARKS = {MARK: "images", "<video>": "videos"}
"""Marks in a text whose pictures are in the column of that name."""
MEDIA_ADVICE = {
    "images": "set `format.image_key: images`",
    "videos": "videos are not read, so leave such rows out",
}
SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user"}
_NULLS_WITH_MEANING = frozenset({"default", "const"})
"""Keys of a JSON schema that may be null."""


class BadConversation(UserError):
    """Messages that cannot be used; the text describes the error."""


def parse_messages(value: object, images: Sequence[JsonValue] | None = None) -> list[JsonObject]:
    """Returns the messages of a column, with the images of the row in their places.

    `images` are content parts with hashes; None for rows of which no images are read.

    Raises: BadConversation.
    """
    parsed = _parsed(value)
    if not isinstance(parsed, list) or not parsed:
        raise BadConversation("not a list of messages")
    messages = [_message(message, place) for place, message in enumerate(parsed)]
    if images is not None:
        return place_images(messages, images)
    for place, message in enumerate(messages):
        if any(map(_is_empty, parts_of(message.get("content")))):
            raise BadConversation(f"message {place} has an image: set `format.image_key`")
    return messages


def holds_messages(value: object) -> bool:
    """Returns True if a prompt's column holds messages, as a list or as its JSON text."""
    if not isinstance(value, str):
        return isinstance(value, list)
    if not value.lstrip().startswith("[") or '"role"' not in value:
        return False
    try:
        found = _parsed(value)
    except BadConversation:
        return False
    return isinstance(found, list) and all(
        isinstance(message, dict) and isinstance(message.get("role"), str) for message in found
    )


def parse_tools(value: object) -> list[JsonObject]:
    """Returns the tools of a column, empty if it is null or empty.

    Raises: BadConversation.
    """
    if value is None or value == "":
        return []
    tools = _parsed(value)
    if not isinstance(tools, list):
        raise BadConversation("not a list of JSON schemas")
    plain = [without_nulls(tool) for tool in tools]
    found: list[JsonObject] = [tool for tool in plain if isinstance(tool, dict)]
    if len(found) < len(tools):
        raise BadConversation("not a list of JSON schemas")
    return found


def without_nulls(value: JsonValue) -> JsonValue:
    """Returns a tool's schema without the nulls that stand for fields of other tools."""
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: without_nulls(part)
        for key, part in value.items()
        if part is not None or key in _NULLS_WITH_MEANING
    }


def last_user_text(messages: Sequence[JsonObject]) -> str:
    """Returns the text of the last message of the user; without one, that of the last message."""
    by_user = [message for message in messages if message["role"] == "user"]
    return text_of_content([*messages, *by_user][-1].get("content"))


def media_column(text: str, row: Mapping[str, object]) -> str | None:
    """Returns the column whose pictures a text refers to, if there are any."""
    named = (column for mark, column in MEDIA_MARKS.items() if mark in text)
    return next((column for column in named if row.get(column)), None)


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadConversation(f"no JSON ({error})") from error


def _message(value: object, place: int) -> JsonObject:
    if isinstance(value, dict) and "role" not in value and isinstance(value.get("from"), str):
        value = _of_sharegpt(value, place)
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise _no_message(place)
    message: JsonObject = {key: part for key, part in value.items() if part is not None}
    if not message.get(CALLS):
        message.pop(CALLS, None)
        if "content" not in message:
            raise _no_message(place)
    else:
        message[CALLS] = [_with_parsed(call, of) for call, of in functions_of(message)]
    # Some templates recognize a tool call by a null content.
    content = message.get("content")
    return message | {"content": _content(content, place) if isinstance(content, list) else content}


def functions_of(message: Mapping[str, Any]) -> Iterator[tuple[JsonObject, JsonObject]]:
    """Yields the calls of a message, each with its function: a part of it, or the call itself."""
    calls = message.get(CALLS)
    for call in calls if isinstance(calls, list) else []:
        function = call.get("function", call) if isinstance(call, dict) else None
        if isinstance(function, dict):
            yield call, function


def with_arguments(call: JsonObject, function: JsonObject, arguments: JsonValue) -> JsonObject:
    """Returns a call with other arguments."""
    changed: JsonObject = {**function, "arguments": arguments}
    return {**call, "function": changed} if "function" in call else changed


def _with_parsed(call: JsonObject, function: JsonObject) -> JsonObject:
    """Returns a call with its arguments as an object, which templates write as JSON themselves.

    Objects lose the nulls that stand for arguments of other calls; a JSON text keeps its own.
    """
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return with_arguments(call, function, without_nulls(arguments or {}))
    try:
        return with_arguments(call, function, json.loads(arguments))
    except (ValueError, RecursionError):
        return call


def _of_sharegpt(value: JsonObject, place: int) -> JsonObject:
    by = str(value["from"])
    if by not in SHAREGPT_ROLES:
        known = ", ".join(SHAREGPT_ROLES)
        raise BadConversation(f"message {place} is from {by!r}, none of {known}: give it a `role`")
    return {"role": SHAREGPT_ROLES[by], "content": value.get("value")}


def _no_message(place: int) -> BadConversation:
    return BadConversation(f"message {place} has no `role`, or neither `content` nor `tool_calls`")


def _content(parts: Sequence[JsonValue], place: int) -> JsonValue:
    """Returns the text of a content that is given as parts; the parts if there are images."""
    made = [_part(part, place) for part in parts]
    texts = [part["text"] for part in made if part["type"] == "text"]
    return "".join(map(str, texts)) if len(texts) == len(made) else [*made]


def _part(part: JsonValue, place: int) -> JsonObject:
    if isinstance(part, str):
        return text_part(part)
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return text_part(str(part["text"]))
    if isinstance(part, dict) and is_image_part(part):
        return part if has_hash(part) else {"type": IMAGE}
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    raise BadConversation(
        f"message {place} has a part of type {str(kind)!r}, and prompts are texts and images"
    )


def parts_of(content: object) -> Sequence[Any]:
    """Returns the parts of a message's content; none for a text."""
    return content if isinstance(content, list | tuple) else ()


def is_image_part(part: object) -> bool:
    """Returns true for a content part of an image, in any dialect, with or without the image."""
    return isinstance(part, Mapping) and part.get("type") in PART_KINDS


def has_hash(part: object) -> bool:
    """Returns true for a content part that names an image by its SHA-256, size and media type."""
    match part:
        case {"type": "image", "sha256": str(text), "size": int(), "media_type": str()}:
            try:
                return len(bytes.fromhex(text)) == SHA256_BYTES
            except ValueError:
                return False
    return False


def text_part(text: str) -> JsonObject:
    """Returns a text as a part of a content."""
    return {"type": "text", "text": text}


def text_of_content(content: object) -> str:
    """Returns the text of a content; images are left out."""
    if isinstance(content, str):
        return content
    return "".join(_text_of(part) or "" for part in parts_of(content))


def place_images(messages: Sequence[JsonObject], images: Sequence[JsonValue]) -> list[JsonObject]:
    """Returns messages in which the images of a row have their places.

    Marks `<image>` in texts and parts without their own image take them in order. Without
    any such place, they stand before the text of the first message of the user.

    Raises: BadConversation when there are more or fewer places than images.
    """
    num_places = sum(map(_num_places, messages))
    if not num_places and images:
        return _before_text(messages, images)
    if num_places != len(images):
        raise BadConversation(
            f"its messages have {num_places} places for images and its row {len(images)} images"
        )
    left = iter(images)
    return [_filled(message, left) for message in messages] if num_places else list(messages)


def _num_places(message: JsonObject) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return content.count(MARK)
    return sum(
        own.count(MARK) if (own := _text_of(part)) is not None else _is_empty(part)
        for part in parts_of(content)
    )


def _text_of(part: object) -> str | None:
    return part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else None


def _is_empty(part: object) -> bool:
    return is_image_part(part) and not has_hash(part)


def _filled(message: JsonObject, left: Iterator[JsonValue]) -> JsonObject:
    content = message.get("content")
    parts = [text_part(content)] if isinstance(content, str) else parts_of(content)
    filled: list[JsonValue] = []
    for part in parts:
        text = _text_of(part)
        if text is None:
            filled.append(next(left) if _is_empty(part) else part)
            continue
        for place, own in enumerate(text.split(MARK)):
            filled += [next(left)] if place else []
            filled += [text_part(own)] if own else []
    has_images = any(map(is_image_part, filled))
    return {**message, "content": filled} if has_images else message


def _before_text(messages: Sequence[JsonObject], images: Sequence[JsonValue]) -> list[JsonObject]:
    made = list(messages)
    first = next((i for i, own in enumerate(made) if own["role"] == "user"), None)
    if first is None:  # an answer to a prompt in another column
        return made
    content = made[first].get("content")
    text = [text_part(content)] if isinstance(content, str) else parts_of(content)
    made[first] = {**made[first], "content": [*images, *text]}
    return made
