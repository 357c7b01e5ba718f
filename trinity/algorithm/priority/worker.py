"""Calls the priority functions that users bring; runs as a process of its own.

    python -m trinity.algorithm.priority.worker 2147483648

The argument is how many bytes of memory it may take for its data. A request has the function's
name, its arguments, and candidates; the answer has their priorities.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.computing import priorities_of
from trinity.types import JsonObject
from trinity.worker_loop import answer_requests


def _answers(request: dict[str, Any]) -> Iterator[Callable[[], JsonObject]]:
    yield partial(_priorities, request)


def _priorities(request: dict[str, Any]) -> JsonObject:
    candidates = [Candidate(**one) for one in request["candidates"]]
    function = PRIORITIES.get(request["name"])
    return {"priorities": list(priorities_of(function, request["arguments"], candidates))}


if __name__ == "__main__":
    sys.exit(answer_requests(_answers, int(sys.argv[1])))
