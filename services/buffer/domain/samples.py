"""Training data as text for people to look at."""

import json

from services.buffer.domain.events import Sample
from trinity.config.data_format import FormatConfig
from trinity.types import JsonObject, JsonValue


def data_sample(row_json: str, form: FormatConfig) -> Sample:
    """Prompt and response of a data row; of messages the last one is the response.

    A row of another form is shown as it is: what is wrong with it, the trainer says.
    """
    try:
        prompt, response = _parts(json.loads(row_json), form)
    except (ValueError, RecursionError):  # it may be nested too deeply for this place
        prompt, response = storable(row_json), ""
    return Sample(prompt=prompt, response=response, reward=None)


def _parts(row: JsonObject, form: FormatConfig) -> tuple[str, str]:
    """Raises: ValueError when it holds no messages where it should."""
    if form.prompt_type == "plaintext":
        return _text(row.get(form.prompt_key)), _text(row.get(form.response_key))
    messages = row.get(form.messages_key)
    if isinstance(messages, str):
        messages = json.loads(messages)
    said = [_text(message.get("content")) for message in _listed(messages)]
    return "\n".join(said[:-1]), "".join(said[-1:])


def _listed(messages: JsonValue) -> list[JsonObject]:
    if not isinstance(messages, list):
        raise ValueError("not a list of messages")
    listed = [one for one in messages if isinstance(one, dict)]
    if len(listed) < len(messages):
        raise ValueError("not messages")
    return listed


def _text(value: JsonValue) -> str:
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def storable(text: str) -> str:
    """The text without what a database has no place for: null characters, lone surrogates."""
    return text.encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
