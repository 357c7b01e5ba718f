"""Pairs as data sets hold them: the prompt apart, before both answers, or there alone."""

from collections.abc import Mapping

import pytest

from tests.unit.subtests import as_subtests
from trinity.config.schema.data import FormatConfig
from trinity.config.training_rows import check_training_row, label_of, read_dpo_row, read_kto_row
from trinity.errors import UserError
from trinity.types import JsonObject, JsonValue


def said(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}


ASKED, GOOD, BAD = said("user", "1+1="), said("assistant", "2"), said("assistant", "3")
RULES = said("system", "Be brief.")
HISTORY: list[JsonValue] = [ASKED, GOOD, said("user", "2+2=")]
TEXTS, MESSAGES = FormatConfig(prompt_type="plaintext"), FormatConfig(messages_key="prompt")
WITH_RULES = FormatConfig(prompt_type="plaintext", system_prompt="Be brief.")


@as_subtests(
    ("form", "row", "prompt"),
    [
        (TEXTS, {"prompt": "1+1=", "chosen": "2", "rejected": "3"}, [ASKED]),
        (TEXTS, {"prompt": "1+1=", "chosen": [GOOD], "rejected": [BAD]}, [ASKED]),
        (TEXTS, {"prompt": "1+1=", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, [ASKED]),
        (WITH_RULES, {"prompt": "1+1=", "chosen": [ASKED, GOOD], "rejected": "3"}, [RULES, ASKED]),
        (TEXTS, {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, [ASKED]),
        (MESSAGES, {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]}, [ASKED]),
        (
            MESSAGES,
            {"prompt": [RULES, ASKED], "chosen": [RULES, ASKED, GOOD], "rejected": [BAD]},
            [RULES, ASKED],
        ),
        (MESSAGES, {"chosen": [*HISTORY, GOOD], "rejected": [*HISTORY, BAD]}, HISTORY),
    ],
)
def test_the_prompt_is_never_trained_on_as_an_answer(
    form: FormatConfig, row: Mapping[str, JsonValue], prompt: list[JsonObject]
) -> None:
    read = read_dpo_row(dict(row), form, "row 0")
    assert (read.prompt, read.answers) == (prompt, [[GOOD], [BAD]])


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (
            {"prompt": [ASKED], "chosen": [said("user", "1 + 1 ="), GOOD], "rejected": [BAD]},
            "row 0, column 'chosen': behind the prompt is a message by 'user'",
        ),
        (
            {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD, said("tool", "4"), BAD]},
            "row 0, column 'rejected': behind the prompt is a message by 'tool'",
        ),
        (
            {"prompt": [ASKED, GOOD], "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
            "row 0, column 'chosen': it has the prompt and no answer behind it",
        ),
        ({"chosen": [ASKED, GOOD], "rejected": [ASKED, GOOD]}, "no answer behind it"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "row 0 has no column 'prompt'"),
    ],
)
def test_what_is_no_answer_is_named(row: Mapping[str, JsonValue], error: str) -> None:
    with pytest.raises(UserError, match=error):
        read_dpo_row(dict(row), MESSAGES, "row 0")


@as_subtests(
    ("label", "is_good"),
    [
        *((label, True) for label in (True, 1, 1.0, "True", "1")),
        *((label, False) for label in (False, 0, 0.0, "false", "0")),
    ],
)
def test_labels_are_read_as_data_sets_have_them(label: JsonValue, is_good: bool) -> None:
    assert label_of({"label": label}, FormatConfig(), "row 0") is is_good


@pytest.mark.parametrize("label", [None, -1, 2, "good", "", [], 0.5])
def test_what_is_no_label_is_named(label: JsonValue) -> None:
    row: JsonObject = {"prompt": "1+1=", "completion": "2", "label": label}
    form = FormatConfig(prompt_type="plaintext", response_key="completion")
    with pytest.raises(UserError, match=r"row 7, column 'label': .* is no label: give true or 1"):
        check_training_row(row, form, "kto", "row 7")


def test_rows_of_kto_are_texts_or_messages() -> None:
    form = FormatConfig(prompt_type="plaintext", response_key="completion")
    texts = read_kto_row({"prompt": ASKED["content"], "completion": "2"}, form, "row 0")
    lists = read_kto_row({"prompt": [ASKED], "completion": [said("assistant", "2")]}, form, "row 0")
    whole = read_kto_row(
        {"messages": [ASKED, said("assistant", "2")]},
        FormatConfig(messages_key="messages"),
        "row 0",
    )
    assert texts == lists == whole
