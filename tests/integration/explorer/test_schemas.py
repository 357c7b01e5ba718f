"""Schemas of responses are compiled in a process that is killed when one takes too long."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path

import pytest
import pytest_asyncio

from services.explorer.openai_api.errors import InvalidApiRequest
from services.explorer.openai_api.schema_worker import load_compiler
from services.explorer.openai_api.schemas import (
    MAX_BYTES,
    SchemaChecker,
    check_size,
)
from trinity.types import JsonObject

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

GRADE: JsonObject = {
    "type": "object",
    "properties": {"grade": {"type": "integer"}, "why": {"type": "string", "pattern": "^[a-z ]+$"}},
    "required": ["grade"],
}
SLOW: JsonObject = {
    "type": "object",
    "properties": {
        letter: {"type": "string", "pattern": f"({letter}{{1,200}}){{1,200}}"} for letter in "abcd"
    },
}
"""A few bytes that take seconds, on any machine."""
ENDLESS: JsonObject = {
    "type": "object",
    "properties": {
        f"p{number}": {"type": "string", "maxLength": 1000 + number} for number in range(800)
    },
    "additionalProperties": False,
}
"""Takes minutes."""
MANY = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def checker(model_path: Path) -> AsyncIterator[SchemaChecker]:
    found = SchemaChecker(str(model_path))
    yield found
    await found.close()


async def test_a_schema_of_usual_size_is_compiled_once(checker: SchemaChecker) -> None:
    await checker.check_schema(json.dumps(GRADE))
    assert checker._worker is not None
    compiler = checker._worker.process
    os.killpg(compiler.pid, signal.SIGSTOP)  # a second compilation would have no end
    try:
        await checker.check_schema(json.dumps(GRADE))
    finally:
        os.killpg(compiler.pid, signal.SIGCONT)


async def ticks(during: Coroutine[object, object, None]) -> int:
    """How often the loop came round."""
    number = 0

    async def tick() -> None:
        nonlocal number
        while True:
            await asyncio.sleep(0)
            number += 1

    ticking = asyncio.ensure_future(tick())
    try:
        await during
    finally:
        ticking.cancel()
    return number


TOO_SLOW = r"s to compile, more than 1 s|did not compile within 10 s"
"""On a machine that does much else, a few seconds of a processor take longer than ten."""


async def refuse(checker: SchemaChecker, schema: JsonObject, named: str) -> None:
    with pytest.raises(InvalidApiRequest, match=named):
        await checker.check_schema(json.dumps(schema))


async def test_a_slow_schema_is_refused_and_the_loop_goes_on(checker: SchemaChecker) -> None:
    assert await ticks(refuse(checker, SLOW, TOO_SLOW)) > MANY


async def test_a_schema_without_an_end_is_killed(model_path: Path) -> None:
    checker = SchemaChecker(str(model_path), max_seconds=2.0)
    await checker.check_schema(json.dumps(GRADE))
    assert await ticks(refuse(checker, ENDLESS, "did not compile within 2 s")) > MANY
    checker._max_seconds = 300.0
    await checker.check_schema(json.dumps({**GRADE, "title": "after"}))
    await checker.close()


async def test_control_a_loop_that_compiles_does_not_come_round(model_path: Path) -> None:
    compile_schema = load_compiler(str(model_path))

    async def compute() -> None:
        await asyncio.sleep(0)
        compile_schema(json.dumps(SLOW))

    assert await ticks(compute()) < MANY


async def test_a_process_that_takes_too_long_is_killed_and_not_asked_again(
    model_path: Path,
) -> None:
    checker = SchemaChecker(str(model_path), max_seconds=0.0)
    await refuse(checker, GRADE, "did not compile within 0 s")
    assert checker._worker is None
    checker._max_seconds = 60.0  # enough to compile it, if it were asked for again
    await refuse(checker, GRADE, "did not compile within")
    assert checker._worker is None


async def test_a_process_that_ends_refuses_one_schema_only(checker: SchemaChecker) -> None:
    await checker.check_schema(json.dumps({**GRADE, "title": "before"}))
    assert checker._worker is not None
    os.killpg(checker._worker.process.pid, signal.SIGKILL)
    await checker._worker.process.wait()
    with pytest.raises(InvalidApiRequest, match="ends the compiler"):
        await checker.check_schema(json.dumps({**GRADE, "title": "then"}))
    await checker.check_schema(json.dumps({**GRADE, "title": "again"}))


def nested(depth: int) -> JsonObject:
    schema: JsonObject = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"enum": [f"value {number}" for number in range(50_000)]}, "KiB"),
        ({"enum": [0] * 21_000}, "values"),
        ({"type": "string", "pattern": "a" * MAX_BYTES}, "KiB"),
        (nested(70), "deep"),
    ],
)
async def test_a_large_schema_is_refused_unread(schema: JsonObject, named: str) -> None:
    with pytest.raises(InvalidApiRequest, match=named):
        check_size(json.dumps(schema))


async def test_schemas_as_people_write_them_are_not_large() -> None:
    check_size(json.dumps({"enum": [f"value {number}" for number in range(1_000)]}))
    check_size(json.dumps(nested(30)))
