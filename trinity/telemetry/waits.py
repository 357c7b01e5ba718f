"""Waits of a process as metrics; variable parts of the reasons are removed."""

import re
from collections.abc import Callable, Iterable

from trinity.api.v1 import synchronizer_pb2 as pb
from trinity.telemetry.instruments import WAIT_SECONDS
from trinity.telemetry.metrics import Observation

MAX_REASON_CHARACTERS = 60
MAX_REASONS = 200
OTHER = "other"
_PARTICULAR = re.compile(r"[0-9a-fA-F]{8}[0-9a-fA-F-]*|\S*[/\\]\S*|'[^']*'|\d+(?:\.\d+)?")
_known: set[str] = set()


def observe_waits(waits: Callable[[], Iterable[pb.Wait]]) -> None:
    """Measures the waits at each export."""
    WAIT_SECONDS.by(lambda: longest_of(waits()))


def longest_of(waits: Iterable[pb.Wait]) -> list[Observation]:
    """Returns the seconds of the longest wait of each owner, target and reason."""
    longest: dict[tuple[str, str, str], float] = {}
    for wait in waits:
        key = (wait.owner, wait.waits_for, _kind_of(wait.reason))
        longest[key] = max(longest.get(key, 0.0), wait.waited_seconds)
    return [
        (seconds, {"trinity.wait.owner": owner, "trinity.wait.for": for_, "trinity.reason": reason})
        for (owner, for_, reason), seconds in longest.items()
    ]


def _kind_of(reason: str) -> str:
    """Returns one text for all reasons of a kind; a limit guards against too many kinds."""
    kind = _PARTICULAR.sub("*", reason.split(":")[0])[:MAX_REASON_CHARACTERS]
    if kind not in _known and len(_known) >= MAX_REASONS:
        return OTHER
    _known.add(kind)
    return kind
