"""Training data as text to show to people."""

import json

from services.buffer.domain.events import Sample
from trinity.config.data_format import FormatConfig
from trinity.types import JsonObject, JsonValue


def data_sample(row_json: str, form: FormatConfig) -> Sample:
    """Returns prompt and response of a data row; the last of its messages is the response.

    A row of another format is shown as it is: the trainer reports what is wrong with it.
    """
    try:
        prompt, response = _parts(json.loads(row_json), form)
    except (ValueError, RecursionError):  # RecursionError: nested too deeply
        prompt, response = storable(row_json), ""
    return Sample(prompt=prompt, response=response, reward=None)


def _parts(row: JsonObject, form: FormatConfig) -> tuple[str, str]:
    """Splits a row into prompt and response.

    Raises: ValueError when there is no list of messages.
    """
    if form.prompt_type == "plaintext":
        return _text(row.get(form.prompt_key)), _text(row.get(form.response_key))
    messages = row.get(form.messages_key)
    if isinstance(messages, str):
        messages = json.loads(messages)
    texts = [_text(message.get("content")) for message in _listed(messages)]
    return "\n".join(texts[:-1]), "".join(texts[-1:])


def _listed(messages: JsonValue) -> list[JsonObject]:
    if not isinstance(messages, list):
        raise ValueError("not a list of messages")
    listed = [message for message in messages if isinstance(message, dict)]
    if len(listed) < len(messages):
        raise ValueError("not messages")
    return listed


def _text(value: JsonValue) -> str:
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def storable(text: str) -> str:
    """Replaces characters that the database cannot store: null characters, lone surrogates."""
    return text.encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
