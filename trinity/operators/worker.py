"""Calls users' operators and advantage functions; runs as a separate process.

    python -m trinity.operators.worker 2147483648

The argument is the limit of its data memory in bytes. A request has the function's kind, name and
arguments, and parts, each with the samples for one call; answers come in the order of the parts.
Without parts the function is only loaded, and the answer states what it needs.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from functools import partial

from trinity.algorithm.advantage.json_codec import Message
from trinity.algorithm.advantage.needs import needs_of
from trinity.operators.kinds import USER_FUNCTION_KINDS
from trinity.runtime.worker_process import serve_requests
from trinity.types import JsonObject


def _handle_request(request: Message) -> Iterator[Callable[[], JsonObject]]:
    if request["parts"] is None:
        yield partial(_needs, request)
    else:
        for part in request["parts"]:
            yield partial(_compute, request, part)


def _needs(request: Message) -> JsonObject:
    function = USER_FUNCTION_KINDS[request["kind"]].registry.get(request["name"])
    return dataclasses.asdict(needs_of(function, request["arguments"]))


def _compute(request: Message, part: Message) -> JsonObject:
    kind = USER_FUNCTION_KINDS[request["kind"]]
    answer = kind.call(request["name"], kind.input_from_json(part), request["arguments"])
    return kind.result_to_json(answer)


if __name__ == "__main__":
    sys.exit(serve_requests(_handle_request, int(sys.argv[1])))
