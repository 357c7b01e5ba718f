"""JSON of strangers is parsed, or refused with a reason."""

import base64
import json
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import astuple
from functools import partial
from pathlib import Path
from random import Random

import pytest

from services.buffer.domain.tasks import SampleCursor
from services.buffer.servicer.samples import cursor_to_text, parse_cursor
from services.buffer.servicer.stage_calls import parse_and_check_plan
from services.buffer.servicer.taskset_calls import _offset_of
from services.explorer.openai_api.chat import _arguments
from services.explorer.openai_api.errors import InvalidApiRequest
from services.synchronizer.plan import (
    directory_of,
    is_same_plan,
    keep_threads,
    longer_stages,
    planned_stages,
    without_secrets,
)
from tests.integration.hostile.values import cursor_of, with_another_type, with_other_types
from tests.support.model_free.experiment import experiment_plan
from tests.unit.subtests import as_subtests
from trinity.errors import InvalidRequest, PreconditionFailed, TooLarge
from trinity.runtime.json_values import holds_null, parse_untrusted

NESTED = "[" * 200_000
SURROGATE = '"\\ud800"'
WHOLE_PAIR = '"\\ud83d\\ude00"'
CURSOR = SampleCursor(
    explore_step=1,
    position=2,
    run=3,
    step=0,
    suffix="a",
    revision=1,
    experience_id=str(uuid.UUID(int=7)),
)


def encoded(place: str) -> str:
    return base64.urlsafe_b64encode(place.encode()).decode()


def cursor_with(**changed: object) -> str:
    place = json.loads(base64.urlsafe_b64decode(cursor_to_text(CURSOR)))
    names = ["explore_step", "position", "run", "step", "suffix", "revision", "experience_id"]
    return encoded(json.dumps([changed.get(n, v) for n, v in zip(names, place, strict=True)]))


def test_a_cursor_that_came_with_a_page_is_taken() -> None:
    assert parse_cursor(cursor_to_text(CURSOR)) == CURSOR
    assert parse_cursor(cursor_with()) == CURSOR


@as_subtests(
    "text",
    [
        encoded(NESTED),
        encoded('{"a":' * 200_000),
        encoded(SURROGATE),
        encoded("1" * 10_000),
        encoded("null"),
        encoded("NaN"),
        cursor_with(suffix="\ud800"),
        cursor_with(suffix="\udfff" + "a"),
        cursor_with(suffix="\x00"),
        cursor_with(experience_id="\ud800"),
        cursor_with(experience_id=[[]]),
        cursor_with(explore_step=2**70),
        cursor_with(revision={}),
        base64.urlsafe_b64encode(b"\xff\xfe[").decode(),
        "\u00e9",
        "=" * 3,
    ],
)
def test_another_cursor_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        parse_cursor(text)


@pytest.mark.parametrize("text", [NESTED, NESTED.encode(), '{"a":' * 200_000, SURROGATE, "{"])
def test_what_cannot_be_stored_or_sent_on_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested|surrogate|Expecting"):
        parse_untrusted(text)


def test_characters_beyond_sixteen_bits_are_parsed() -> None:
    assert parse_untrusted(WHOLE_PAIR) == "\U0001f600"


@pytest.mark.parametrize("text", [NESTED, SURROGATE])
def test_arguments_of_a_call_of_a_tool_are_refused_alike(text: str) -> None:
    with pytest.raises(InvalidApiRequest, match="is not JSON"):
        _arguments(text, "messages[0].tool_calls[0].function.arguments")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"a\\u0000"', True),
        ('"\\\\\\u0000"', True),
        ('"\\\\u0000"', False),
        ('"\\u00001"', True),
        ('"u0000"', False),
    ],
)
def test_null_characters_are_told_from_their_spelling(text: str, expected: bool) -> None:
    assert holds_null(text) is expected
    assert ("\x00" in json.loads(text)) is expected


@pytest.mark.parametrize("key", ["job_dir", "anything"])
def test_the_synchronizer_takes_no_plan_with_a_null_character(key: str) -> None:
    plan = {"stages": [{"name": "rft", "roles": ["trainer"]}], key: "/a\x00b"}
    with pytest.raises(InvalidRequest, match="plan_json: holds a NUL character"):
        planned_stages(json.dumps(plan))
    assert planned_stages(json.dumps({**plan, key: "/ab"}))


STAGES = '{"stages": [{"name": "rft", "roles": ["trainer"]}], "other": %s}'


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 150_000 + "]" * 150_000, '{"a":' * 150_000])
def test_a_plan_that_could_not_be_read_again_is_refused(value: str) -> None:
    """The parser that takes a plan refuses what the one that shows it could not read."""
    with pytest.raises(InvalidRequest, match="plan_json"):
        planned_stages(STAGES % value)
    assert planned_stages(STAGES % ("1" * 4_000)), "the control"


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 150_000])
def test_a_plan_of_a_stage_that_could_not_be_read_again_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest, match="plan_json"):
        parse_and_check_plan(f'{{"other": {value}}}')


def test_a_plan_is_shown_as_short_as_it_came() -> None:
    """Written with escapes, it would take three times its bytes."""
    plan = json.dumps({"name": "\N{SNOWMAN}" * 1_000, "api_key": "k"}, ensure_ascii=False)
    shown = without_secrets(plan)
    assert json.loads(shown) == {"name": "\N{SNOWMAN}" * 1_000, "api_key": "***"}
    assert len(shown.encode()) <= len(plan.encode())
    with pytest.raises(TooLarge, match="plan_json has more than 3,145,728 bytes as it is shown"):
        without_secrets(f"[{','.join(['1e15'] * 500_000)}]")


@pytest.mark.parametrize(
    "token", ["x", "-1", "1.0", "\u0663", "1" * 11, "0" * 20 + "9" * 100, "0" * 20 + "9" * 5_000]
)
def test_a_token_of_a_page_that_was_not_given_is_refused(token: str) -> None:
    with pytest.raises(InvalidRequest, match="page_token"):
        _offset_of(token)


def test_tokens_of_pages_that_were_given_are_taken() -> None:
    assert [_offset_of(token) for token in ("", "100", "1000000000")] == [0, 100, 10**9]


def test_a_cursor_with_another_type_in_any_place_is_taken_or_refused() -> None:
    document = json.loads(base64.urlsafe_b64decode(cursor_to_text(CURSOR)))
    num_refused = 0
    for changed in with_other_types(document):
        try:
            taken = parse_cursor(cursor_of(changed))
        except InvalidRequest:
            num_refused += 1
            continue
        assert taken is not None
        assert [type(value) for value in astuple(taken)] == [int, int, int, int, str, int, str]
    assert num_refused > 150


NUM_PLANS = 400


def test_plans_with_another_type_in_any_place_are_taken_or_refused(tmp_path: Path) -> None:
    plan = experiment_plan(tmp_path, name="typed")
    whole, random = json.loads(plan.model_dump_json()), Random(1)
    refused: Counter[str] = Counter()
    for _ in range(NUM_PLANS):
        text = json.dumps(with_another_type(whole, random))
        stage = json.dumps(with_another_type(whole["stages"][0], random))
        calls: list[Callable[[], object]] = [
            partial(parse_and_check_plan, stage),
            partial(_synchronizer_reads, plan.model_dump_json(), text),
        ]
        for call in calls:
            try:
                call()
            except (InvalidRequest, TooLarge, PreconditionFailed) as error:
                refused[type(error).__name__] += 1
    assert refused["InvalidRequest"] > NUM_PLANS / 4


def _synchronizer_reads(begun: str, text: str) -> None:
    """What CreateExperiment and GetExperiment do with a plan."""
    planned_stages(text)
    without_secrets(text)
    directory_of(text)
    longer_stages(begun, text)
    is_same_plan(begun, text)
    keep_threads(begun, text)
