"""Rows of training data as tokens, one encoder a kind of data."""

import json
from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from services.trainer.chat_text import ChatText, Encoded, Message, Tools
from trinity.config.data_format import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject


class Encoder(Protocol):
    """One sequence a row, or the two of a pair, the chosen one first."""

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]: ...


class AnswerEncoder:
    """For sft: the last message, all of the assistant's, or the response is trained on."""

    def __init__(self, chat: ChatText, row_format: FormatConfig) -> None:
        self._chat = chat
        self._format = row_format

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        form = self._format
        if form.prompt_type == "messages":
            messages = _messages(row, form.messages_key, index)
            tools = tools_of(row, form, index)
            if form.enable_concatenated_multi_turn:
                return [self._chat.encode_turns(messages, index=index, tools=tools)]
            return [self._chat.encode(messages[:-1], messages[-1:], index=index, tools=tools)]
        answer = _text_message("assistant", _column(row, form.response_key, index))
        return [self._chat.encode(prompt_of(row, form, index), [answer], index=index)]


class PairEncoder:
    """For dpo: a better and a worse answer to the same prompt, both trained on."""

    def __init__(self, chat: ChatText, row_format: FormatConfig) -> None:
        self._chat = chat
        self._format = row_format

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        form = self._format
        if form.prompt_type == "messages":
            prompt = _messages(row, form.messages_key, index)
        else:
            prompt = prompt_of(row, form, index)
        answers = [_answer(row, key, index) for key in (form.chosen_key, form.rejected_key)]
        tools = tools_of(row, form, index)
        return [self._chat.encode(prompt, one, index=index, tools=tools) for one in answers]


class TextEncoder:
    """For cpt: a text with the token that ends it; all but the first token is trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, row_format: FormatConfig) -> None:
        self._tokenizer = tokenizer
        self._key = row_format.prompt_key

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        tokens: list[int] = self._tokenizer(str(_column(row, self._key, index)))["input_ids"]
        end = self._tokenizer.eos_token_id
        if end is not None and tokens[-1:] != [end]:
            tokens = [*tokens, end]
        return [Encoded(tokens, min(1, len(tokens)))]


def prompt_of(row: JsonObject, form: FormatConfig, index: int) -> list[Message]:
    """The prompt of a row of texts, after the system prompt if there is one."""
    system = form.system_prompt
    if form.system_prompt_key is not None:
        system = str(_column(row, form.system_prompt_key, index))
    user = _text_message("user", _column(row, form.prompt_key, index))
    return [_text_message("system", system), user] if system else [user]


def tools_of(row: JsonObject, form: FormatConfig, index: int) -> Tools | None:
    """What the prompt offers to call; most rows have no such column.

    Raises: UserError when there is one, and it holds no list.
    """
    found = row.get(form.tools_key)
    if not found:
        return None
    try:
        tools = json.loads(found) if isinstance(found, str) else found
    except ValueError as error:
        raise UserError(f"row {index}, column {form.tools_key!r}: no JSON ({error})") from error
    if not (isinstance(tools, list) and all(isinstance(one, dict) for one in tools)):
        raise UserError(f"row {index}, column {form.tools_key!r}: not a list of JSON schemas")
    return list(tools)


def _text_message(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def _answer(row: JsonObject, key: str, index: int) -> list[Message]:
    """A list of messages, its JSON text, or the text of one answer."""
    found = _column(row, key, index)
    if isinstance(found, str) and not found.startswith("[{"):
        return [_text_message("assistant", found)]
    return _messages(row, key, index)


def _messages(row: JsonObject, key: str, index: int) -> list[Message]:
    found = _column(row, key, index)
    parsed = json.loads(found) if isinstance(found, str) else found
    if not isinstance(parsed, list) or not parsed:
        raise UserError(f"row {index}, column {key!r}: not a list of messages")
    return parsed


def _column(row: JsonObject, key: str, index: int) -> object:
    if key not in row:
        raise UserError(
            f"row {index} of the training data has no column {key!r}; "
            f"it has {', '.join(sorted(row))}"
        )
    return row[key]
