"""Training data as text for people to look at."""

import json

from services.buffer.domain.events import Sample
from trinity.config.data_format import FormatConfig
from trinity.types import JsonValue


def data_sample(row_json: str, form: FormatConfig) -> Sample:
    """Prompt and response of a data row; of messages the last one is the response."""
    row = json.loads(row_json)
    if form.prompt_type == "plaintext":
        prompt, response = row.get(form.prompt_key), row.get(form.response_key)
        return Sample(prompt=_text(prompt), response=_text(response), reward=None)
    messages = row.get(form.messages_key) or []
    if isinstance(messages, str):
        messages = json.loads(messages)
    said = [_text(message.get("content")) for message in messages]
    return Sample(prompt="\n".join(said[:-1]), response="".join(said[-1:]), reward=None)


def _text(value: JsonValue) -> str:
    return storable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def storable(text: str) -> str:
    """The text without what a database has no place for: null characters, lone surrogates."""
    return text.encode(errors="replace").decode().replace("\x00", "\N{REPLACEMENT CHARACTER}")
