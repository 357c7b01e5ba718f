"""Encoders of rows of training data to tokens, one for each kind of data."""

import json
from collections.abc import Sequence
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from services.trainer.chat_template import Conversation, Message, Tools
from services.trainer.chat_text import ChatText, Encoded
from trinity.config.data_format import FormatConfig
from trinity.errors import UserError
from trinity.types import JsonObject


class Encoder(Protocol):
    """Returns one sequence for a row, or the two of a pair, the chosen one first."""

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]: ...


class AnswerEncoder:
    """Encoder for sft: trains on the last message, all the assistant's, or the response."""

    def __init__(self, chat: ChatText, row_format: FormatConfig) -> None:
        self._chat = chat
        self._format = row_format

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        form = self._format
        if form.prompt_type == "plaintext":
            prompt = Conversation(index=index, messages=prompt_of(row, form, index))
            answer = _text_message("assistant", _text(row, form.response_key, index))
            return [self._chat.encode(prompt, [answer])]
        conversation = Conversation(
            index=index,
            messages=_messages(row, form.messages_key, index),
            tools=tools_of(row, form, index),
        )
        where = f"row {index}, column {form.messages_key!r}"
        if form.enable_concatenated_multi_turn:
            _check_turns(conversation, where)
            return [self._chat.encode_turns(conversation)]
        _check_last(conversation, where)
        prompt = conversation.until(len(conversation.messages) - 1)
        return [self._chat.encode(prompt, conversation.messages[-1:])]


class PairEncoder:
    """Encoder for dpo: a better and a worse answer to the same prompt, both trained on."""

    def __init__(self, chat: ChatText, row_format: FormatConfig) -> None:
        self._chat = chat
        self._format = row_format

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        form = self._format
        if form.prompt_type == "messages":
            messages = _messages(row, form.messages_key, index)
        else:
            messages = prompt_of(row, form, index)
        answers = [_answer(row, key, index) for key in (form.chosen_key, form.rejected_key)]
        prompt = Conversation(index=index, messages=messages, tools=tools_of(row, form, index))
        return [self._chat.encode(prompt, answer) for answer in answers]


class TextEncoder:
    """Encoder for cpt: a text and its end token; all but the first token is trained on."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, row_format: FormatConfig) -> None:
        self._tokenizer = tokenizer
        self._key = row_format.prompt_key

    def __call__(self, row: JsonObject, index: int) -> Sequence[Encoded]:
        """Raises: UserError naming the row and what it lacks."""
        tokens: list[int] = self._tokenizer(_text(row, self._key, index))["input_ids"]
        end = self._tokenizer.eos_token_id
        if end is not None and tokens[-1:] != [end]:
            tokens = [*tokens, end]
        return [Encoded(tokens, min(1, len(tokens)))]


def prompt_of(row: JsonObject, form: FormatConfig, index: int) -> list[Message]:
    """Returns the prompt of a row of texts, after the system prompt if there is one.

    The system prompt is the row's own, or that of all rows.
    """
    key, system = form.system_prompt_key, form.system_prompt
    if key and _column(row, key, index) not in (None, ""):
        system = _text(row, key, index)
    user = _text_message("user", _text(row, form.prompt_key, index))
    return [_text_message("system", system), user] if system else [user]


def tools_of(row: JsonObject, form: FormatConfig, index: int) -> Tools | None:
    """Returns the tools that the prompt offers; most rows have no such column.

    Raises: UserError when the column holds something other than a list.
    """
    value = row.get(form.tools_key)
    if not value:
        return None
    tools = _parsed(value, form.tools_key, index)
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise UserError(f"row {index}, column {form.tools_key!r}: not a list of JSON schemas")
    return list(tools)


def _text_message(role: str, content: object) -> Message:
    return {"role": role, "content": content}


def _answer(row: JsonObject, key: str, index: int) -> list[Message]:
    """Returns the answer's messages from a list, its JSON text, or the text of one answer."""
    value = _column(row, key, index)
    if isinstance(value, str) and not value.startswith("[{"):
        return [_text_message("assistant", value)]
    return _messages(row, key, index)


def _messages(row: JsonObject, key: str, index: int) -> list[Message]:
    where = f"row {index}, column {key!r}"
    parsed = _parsed(_column(row, key, index), key, index)
    if not isinstance(parsed, list) or not parsed:
        raise UserError(f"{where}: not a list of messages: correct the row or leave it out")
    for place, message in enumerate(parsed):
        if not _is_message(message):
            raise UserError(
                f"{where}: message {place} has no `role`, or neither `content` nor `tool_calls`: "
                "correct the row or leave it out"
            )
    return parsed


def _is_message(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    return value.get("content") is not None or bool(value.get("tool_calls"))


def _check_last(conversation: Conversation, where: str) -> None:
    """Checks that the last message is an answer with a prompt before it."""
    role = conversation.messages[-1]["role"]
    if role != "assistant":
        raise UserError(
            f"{where}: its last message is by {role!r}, no answer of the assistant to train on: "
            "correct the row or leave it out"
        )
    if len(conversation.messages) == 1:
        raise _without_prompt(where)


def _check_turns(conversation: Conversation, where: str) -> None:
    """Checks that there are answers, each with a prompt before it."""
    if not conversation.answers:
        raise UserError(
            f"{where}: it has no answer of the assistant to train on: "
            "correct the row or leave it out"
        )
    if conversation.answers[0] == 0:
        raise _without_prompt(where)


def _without_prompt(where: str) -> UserError:
    return UserError(
        f"{where}: it begins with the assistant, so its answer has no prompt: put a message "
        "before it, or leave the row out"
    )


def _parsed(value: object, key: str, index: int) -> object:
    """Returns a list, parsed if it is JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(
            f"row {index}, column {key!r}: no JSON ({error}): correct the row or leave it out"
        ) from error


def _text(row: JsonObject, key: str, index: int) -> str:
    value = _column(row, key, index)
    if value is None or isinstance(value, list | dict):
        raise UserError(
            f"row {index}, column {key!r}: it holds no text: correct the row or leave it out"
        )
    return str(value)


def _column(row: JsonObject, key: str, index: int) -> object:
    if key not in row:
        raise UserError(
            f"row {index} has no column {key!r}; it has {', '.join(sorted(row))}: "
            "correct the row or leave it out"
        )
    return row[key]
