"""What a stranger causes is told once and then counted."""

import asyncio
import logging

import grpc
import pytest

from tests.unit.rpc.test_server import Setup, call, setup
from trinity.errors import InvalidRequest
from trinity.runtime.logs import RateLimitedLog, TextFormatter
from trinity.runtime.rpc.guard import MAX_DETAILS_LENGTH

__all__ = ["setup"]


async def test_a_burst_is_one_line_and_then_its_count(caplog: pytest.LogCaptureFixture) -> None:
    log = RateLimitedLog(logging.getLogger("trinity.test"), interval_seconds=0.2)
    for number in range(1_000):
        log.warning("refused", number=number)
    log.error("failed", ValueError("why"))
    assert [record.getMessage() for record in caplog.records] == ["refused", "failed"]
    await asyncio.sleep(0.3)
    last = caplog.records[-1]
    assert (last.getMessage(), last.__dict__["times"]) == ("refused again", 999)
    await asyncio.sleep(0.3)
    log.warning("refused")
    assert [record.getMessage() for record in caplog.records[3:]] == ["refused"]


def test_a_line_of_the_log_stays_one_line() -> None:
    record = logging.makeLogRecord(
        {"msg": "role\nfinished", "stage": "a\r\n2026 ERROR \x1b[2J\x85"}
    )
    line = TextFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert r"stage=a\r\n2026 ERROR \x1b[2J\x85" in line


async def test_a_long_error_does_not_outgrow_the_headers(setup: Setup) -> None:
    setup.trainer.error = InvalidRequest("\U0001f4a5" * 100_000)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(setup)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "\U0001f4a5" * MAX_DETAILS_LENGTH


async def test_an_error_of_ours_is_logged_with_its_traceback_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.trainer.error = RuntimeError("a bug")
    for _ in range(5):
        with pytest.raises(grpc.aio.AioRpcError):
            await call(setup)
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info is not None and "a bug" in str(record.exc_info[1])
