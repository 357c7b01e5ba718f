"""Training rows as conversations, checked without a model.

read_sft_row(row, form, where="row 3")  # raises UserError naming the column and the error
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from pydantic import BaseModel, ConfigDict

from trinity.algorithm.algorithm_type import RowSchema
from trinity.config.schema.data import FormatConfig
from trinity.data.conversations import (
    BadConversation,
    holds_messages,
    parse_messages,
    parse_tools,
    place_images,
)
from trinity.errors import UserError
from trinity.runtime.json_values import JsonObject, JsonValue
from trinity.user_code.columns import column_value, has_column, optional_column, row_images

REMEDY = "correct the row or leave it out"
LAST_TURN = {"enable_concatenated_multi_turn": False}
LABEL_TYPES = (bool, int, float, str)
LABELS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


class RowCheck(BaseModel):
    """A check of rows of training data while they are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: FormatConfig
    row_schema: RowSchema
    skips: bool
    """Bad rows are left out; else the first of them is an error."""

    def require_trainable(self, row: JsonObject, where: str) -> None:
        """Raises: UserError for a row that cannot be trained on."""
        check_training_row(row, self.form, self.row_schema, where)


class SkippedRows(BaseModel):
    """Rows that a reader has left out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int
    first_errors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """A prompt with its answers: one for sft and kto, the better and the worse one for dpo."""

    prompt: Sequence[JsonObject]
    answers: Sequence[Sequence[JsonObject]]
    tools: Sequence[JsonObject]

    @property
    def conversation(self) -> Sequence[JsonObject]:
        """The prompt with its first answer."""
        return [*self.prompt, *self.answers[0]]


def check_training_row(
    row: JsonObject, form: FormatConfig, schema: RowSchema, where: str
) -> PromptRow | None:
    """Checks all that can be known of a row without a tokenizer; returns its prompt and answers.

    Raises: UserError naming the row, its column and the error.
    """
    match schema:
        case "cpt":
            read_cpt_row(row, form, where)
            return None
        case "dpo":
            return read_dpo_row(row, form, where)
        case "kto":
            label_of(row, form, where)
            return read_kto_row(row, form, where)
        case _:
            return read_sft_row(row, form, where)


def read_cpt_row(row: JsonObject, form: FormatConfig, where: str) -> str:
    """Returns the text."""
    return _text(row, form.prompt_key, where)


def read_sft_row(row: JsonObject, form: FormatConfig, where: str) -> PromptRow:
    """Returns the prompt and the answer, which is the last message."""
    if form.prompt_type == "plaintext":
        prompt = prompt_of(row, form, where)
        answer = _text_message("assistant", _text(row, form.response_key, where))
        return PromptRow(prompt=prompt, answers=[[answer]], tools=[])
    key = form.messages_key
    messages = _messages(row, key, form, where)
    place = f"{where}, column {key!r}"
    check = _check_turns if form.enable_concatenated_multi_turn else _check_last
    check(messages, place)
    tools = tools_of(row, form, where)
    return PromptRow(prompt=messages[:-1], answers=[messages[-1:]], tools=tools)


def read_dpo_row(row: JsonObject, form: FormatConfig, where: str) -> PromptRow:
    """Returns the prompt with the better and the worse answer.

    Answers may be whole conversations that begin with the prompt. Where such a row has no column
    for the prompt, it is what both begin with.
    """
    keys = (form.chosen_key, form.rejected_key)
    told = [_answer(row, key, form, where) for key in keys]
    prompt = _prompt_of_pair(row, form, told, where)
    answers = [
        _answer_after(prompt, messages, f"{where}, column {key!r}")
        for key, messages in zip(keys, told, strict=True)
    ]
    return PromptRow(prompt=prompt, answers=answers, tools=tools_of(row, form, where))


def read_kto_row(row: JsonObject, form: FormatConfig, where: str) -> PromptRow:
    """Returns the prompt and the answer that is labelled; both may be texts or messages."""
    if form.prompt_type == "messages":
        return read_sft_row(row, form.model_copy(update=LAST_TURN), where)
    prompt = prompt_of(row, form, where)
    place = f"{where}, column {form.response_key!r}"
    answer = _answer_after(prompt, _answer(row, form.response_key, form, where), place)
    return PromptRow(prompt=prompt, answers=[answer], tools=tools_of(row, form, where))


def label_of(row: JsonObject, form: FormatConfig, where: str) -> bool:
    """Returns the label: true, 1 and texts of these are good answers, false and 0 bad ones.

    Raises: UserError for anything else.
    """
    value = _column(row, form.label_key, where)
    known = LABELS.get(str(value).strip().casefold()) if isinstance(value, LABEL_TYPES) else None
    if known is None:
        raise UserError(
            f"{where}, column {form.label_key!r}: {str(value)[:40]!r} is no label: give true or 1 "
            "for a good answer, false or 0 for a bad one, or leave the row out"
        )
    return known


def _prompt_of_pair(
    row: JsonObject, form: FormatConfig, told: Sequence[list[JsonObject]], where: str
) -> list[JsonObject]:
    has_messages = form.prompt_type == "messages"
    if not has_column(row, form.messages_key if has_messages else form.prompt_key):
        same = takewhile(lambda pair: pair[0] == pair[1], zip(*told, strict=False))
        if shared := [message for message, _ in same]:
            return shared
    return (
        _messages(row, form.messages_key, form, where)
        if has_messages
        else prompt_of(row, form, where)
    )


def _answer_after(
    prompt: Sequence[JsonObject], messages: list[JsonObject], place: str
) -> list[JsonObject]:
    """Returns the answer without the prompt, which many data sets repeat before it."""
    own = list(prompt[1:]) if prompt[0]["role"] == "system" else list(prompt)
    for before in (list(prompt), own):
        if before and messages[: len(before)] == before:
            messages = messages[len(before) :]
            break
    if not messages:
        raise UserError(f"{place}: it has the prompt and no answer behind it: {REMEDY}")
    others = [message["role"] for message in messages if message["role"] != "assistant"]
    if others:
        raise UserError(
            f"{place}: behind the prompt is a message by {others[0]!r}, which would be trained on "
            "as if the assistant had written it: put all messages before the answer into the "
            "prompt, or leave the row out"
        )
    return messages


def prompt_of(row: JsonObject, form: FormatConfig, where: str) -> list[JsonObject]:
    """Returns the prompt of a row of texts, after the system prompt if there is one.

    The system prompt is the row's own, or that of all rows. A prompt of messages keeps its own.
    """
    key, system = form.system_prompt_key, form.system_prompt
    if key and _column(row, key, where) not in (None, ""):
        system = _text(row, key, where)
    if holds_messages(optional_column(row, form.prompt_key)):
        prompt = _messages(row, form.prompt_key, form, where)
    else:
        prompt = [_text_message("user", _text(row, form.prompt_key, where))]
        if (images := row_images(row, form.image_key)) is not None:
            with _named(form.prompt_key, where):
                prompt = place_images(prompt, images)
    has_system = not system or prompt[0]["role"] == "system"
    return prompt if has_system else [_text_message("system", system or ""), *prompt]


def tools_of(row: JsonObject, form: FormatConfig, where: str) -> list[JsonObject]:
    """Returns the tools that the prompt offers; most rows have no such column.

    Raises: UserError when the column holds something other than a list.
    """
    try:
        return parse_tools(optional_column(row, form.tools_key))
    except BadConversation as error:
        raise UserError(f"{where}, column {form.tools_key!r}: {error}") from error


def _text_message(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}


def _answer(row: JsonObject, key: str, form: FormatConfig, where: str) -> list[JsonObject]:
    """Returns the answer's messages from a list, its JSON text, or the text of one answer."""
    value = _column(row, key, where)
    if isinstance(value, str) and not value.startswith("[{"):
        return [_text_message("assistant", value)]
    return _messages(row, key, form, where)


def _messages(row: JsonObject, key: str, form: FormatConfig, where: str) -> list[JsonObject]:
    value = _column(row, key, where)
    with _named(key, where):
        return parse_messages(value, row_images(row, form.image_key))


@contextmanager
def _named(key: str, where: str) -> Iterator[None]:
    """Raises UserError that names the row and the column of messages that cannot be used."""
    try:
        yield
    except BadConversation as error:
        raise UserError(f"{where}, column {key!r}: {error}: {REMEDY}") from error


def _check_last(messages: Sequence[JsonObject], place: str) -> None:
    """Checks that the last message is an answer with a prompt before it."""
    role = messages[-1]["role"]
    if role != "assistant":
        raise UserError(
            f"{place}: its last message is by {role!r}, no answer of the assistant to train on: "
            f"{REMEDY}"
        )
    if len(messages) == 1:
        raise _without_prompt(place)


def _check_turns(messages: Sequence[JsonObject], place: str) -> None:
    """Checks that there are answers, each with a prompt before it."""
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise UserError(f"{place}: it has no answer of the assistant to train on: {REMEDY}")
    if roles[0] == "assistant":
        raise _without_prompt(place)


def _without_prompt(place: str) -> UserError:
    return UserError(
        f"{place}: it begins with the assistant, so its answer has no prompt: put a message "
        "before it, or leave the row out"
    )


def _text(row: JsonObject, key: str, where: str) -> str:
    value = _column(row, key, where)
    if value is None or isinstance(value, list | dict):
        raise UserError(f"{where}, column {key!r}: it holds no text: {REMEDY}")
    return str(value)


def _column(row: JsonObject, key: str, where: str) -> JsonValue:
    if not has_column(row, key):
        raise UserError(f"{where} has no column {key!r}; it has {', '.join(sorted(row))}: {REMEDY}")
    return column_value(row, key)
