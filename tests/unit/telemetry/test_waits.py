"""Waits are told with few different texts."""

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.runtime.telemetry import metrics
from trinity.runtime.telemetry.metrics import MAX_REASONS, OTHER, longest_waits


def wait(reason: str, seconds: float) -> pb.Wait:
    return pb.Wait(owner="explorer", waits_for="buffer", reason=reason, waited_seconds=seconds)


def test_waits_of_a_kind_are_one_figure() -> None:
    told = longest_waits(
        [
            wait("to shape 12 groups, the first of assignment 5f2b1b4e-0c9e-5d7c-9a53-5a3d0d8b", 1),
            wait("to shape 3 groups, the first of assignment 77777777-0c9e-5d7c-9a53-5a3d0d8b", 5),
            wait("to load /work/model: it is large", 2),
            wait("stage 'one of a person' to begin", 3),
        ]
    )
    assert [(seconds, about["trinity.reason"]) for seconds, about in told] == [
        (5.0, "to shape * groups, the first of assignment *"),
        (2.0, "to load *"),
        (3.0, "stage * to begin"),
    ]


def test_there_is_a_limit_to_kinds() -> None:
    metrics._known.clear()
    words = ["".join(chr(97 + int(digit)) for digit in str(i)) for i in range(3 * MAX_REASONS)]
    told = {about["trinity.reason"] for _, about in longest_waits(wait(word, 1) for word in words)}
    assert len(told) == MAX_REASONS + 1 and OTHER in told
    metrics._known.clear()
