"""Runs user-defined priority functions in a separate process.

    python -m trinity.algorithm.priority.worker 2147483648

The argument is the limit of its data memory in bytes. A request has the function's name, its
arguments, and candidates; the response has their priorities.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.evaluation import compute_priorities
from trinity.types import JsonObject
from trinity.user_code.worker_process import serve_requests


def _answers(request: dict[str, Any]) -> Iterator[Callable[[], JsonObject]]:
    yield partial(_priorities, request)


def _priorities(request: dict[str, Any]) -> JsonObject:
    candidates = [Candidate(**candidate) for candidate in request["candidates"]]
    function = PRIORITIES.get(request["name"])
    return {"priorities": list(compute_priorities(function, request["arguments"], candidates))}


if __name__ == "__main__":
    sys.exit(serve_requests(_answers, int(sys.argv[1])))
