"""A stream is opened again after an outage or its token's end, and not for ever without a token."""

import grpc
import pytest

from trinity.run.launch.follow import REFUSED_SECONDS, StreamRetry


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def broken(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


REFUSED = broken(grpc.StatusCode.UNAUTHENTICATED)
AWAY = broken(grpc.StatusCode.UNAVAILABLE)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_who_is_refused_for_a_minute_is_told_so(clock: Clock) -> None:
    retry = StreamRetry(clock)
    for clock.now in (0.0, REFUSED_SECONDS / 2, REFUSED_SECONDS):
        retry.record_open()
        retry.raise_if_permanent(REFUSED)
    clock.now += 1.0
    retry.record_open()
    with pytest.raises(grpc.aio.AioRpcError):
        retry.raise_if_permanent(REFUSED)


@pytest.mark.parametrize("seconds", [1.0, 10 * REFUSED_SECONDS])
def test_a_silent_stream_that_lasted_ended_with_its_token(clock: Clock, seconds: float) -> None:
    retry = StreamRetry(clock)
    for _ in range(100):
        retry.record_open()
        if seconds < REFUSED_SECONDS:
            retry.record_answer()
        clock.now += seconds
        retry.raise_if_permanent(REFUSED)


def test_an_outage_between_two_refusals_starts_the_minute_anew(clock: Clock) -> None:
    retry = StreamRetry(clock)
    for error in (REFUSED, AWAY, REFUSED):
        retry.record_open()
        retry.raise_if_permanent(error)
        clock.now += REFUSED_SECONDS


def test_other_errors_are_not_waited_out(clock: Clock) -> None:
    retry = StreamRetry(clock)
    retry.record_open()
    with pytest.raises(grpc.aio.AioRpcError):
        retry.raise_if_permanent(broken(grpc.StatusCode.PERMISSION_DENIED))
