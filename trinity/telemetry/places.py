"""Span contexts whose ids are derived from the work itself, so that no process must store them.

The trace of a task and its first span have the same ids in every process and after every restart:
both are hashes of the assignment's id. A train step's ids follow from its place in the experiment.
Any process that holds the work knows the trace; a killed explorer leaves nothing that the next one
needs.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
KEPT = 4096
"""Size of the cache: the same places are requested repeatedly."""


@dataclass(frozen=True, slots=True)
class Place:
    """The context of a span, as other processes refer to it."""

    trace_id: int
    span_id: int
    is_sampled: bool | None = None
    """None if it follows from the trace's id alone: every process decides alike."""

    @property
    def trace_hex(self) -> str:
        """The trace's id in hexadecimal."""
        return f"{self.trace_id:032x}"

    @property
    def span_hex(self) -> str:
        """The span's id in hexadecimal."""
        return f"{self.span_id:016x}"

    @property
    def traceparent(self) -> str:
        """The W3C header's value."""
        return f"00-{self.trace_hex}-{self.span_hex}-{int(bool(self.is_sampled)):02x}"


def of_task(assignment_id: str) -> Place:
    """Returns the span that begins the trace of a task."""
    return _derived(f"task/{assignment_id}")


def in_task(assignment_id: str, traceparent: str) -> Place:
    """Returns the place in a header if it is in the task's trace, else the trace's first.

    A header that came with a message is untrusted.
    """
    task = of_task(assignment_id)
    named = parse(traceparent)
    return named if named is not None and named.trace_id == task.trace_id else task


def of_step(experiment_id: str, stage: str, incarnation: int, step: int) -> Place:
    """Returns the span of a train step, and of the weights version with its number."""
    return _derived(f"step/{experiment_id}/{stage}/{incarnation}/{step}")


def parse(traceparent: str) -> Place | None:
    """Returns the place that a header names, or None."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None or found[0].startswith("ff"):
        return None
    trace_id, span_id = int(found[1], 16), int(found[2], 16)
    if not trace_id or not span_id:
        return None
    return Place(trace_id, span_id, bool(int(found[3], 16) & _SAMPLED))


@lru_cache(maxsize=KEPT)
def _derived(name: str) -> Place:
    digest = hashlib.blake2b(name.encode(), digest_size=24, person=b"trinity-trace").digest()
    return Place(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:]) or 1)
