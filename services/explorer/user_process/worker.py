"""Runs users' rewards and workflows; runs as a separate process.

    python -m services.explorer.user_process.worker 7

The argument is a file descriptor: on SIGUSR1 the process writes its traceback there. A request has
a `kind`: `load` imports the parts of a stage, `reward` scores an answer, `workflow` makes runs.
During a workflow, lines with `call` ask the model, and lines with `reply` answer them. A request
has a `number` that its answer has, too, with the `seconds` it took, and one with `begin_by` is not
begun after that time.
"""

import faulthandler
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from services.explorer.user_process.calls import MAKES_CALLS, CallChannel
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, RewardSource
from trinity.types import JsonObject
from trinity.user_code.values import Failure, PartRef, decode_known
from trinity.user_code.worker_process import serve_requests

Message = dict[str, Any]


def bound_reward(request: Message) -> BoundReward:
    """Constructs the reward of a request.

    Raises: UserError when it is missing or refuses its arguments, and its constructor's errors.
    """
    ref: PartRef[RewardSource] = PartRef(**request["part"])
    return BoundReward(ref.resolve(REWARDS), request["args"], request["part"]["name"])


def _handle_request(channel: CallChannel, request: Message) -> Iterator[Callable[[], JsonObject]]:
    handlers: dict[str, Callable[[Message], JsonObject]] = {
        "load": _load,
        "reward": _score,
        MAKES_CALLS: partial(_run, channel),
    }
    handle = handlers[request["kind"]]
    if time.monotonic() > request.get("begin_by", math.inf):
        handle = _decline
    yield partial(_answer, handle, request)


def _decline(request: Message) -> JsonObject:
    """Answers a call that waited for too long behind others; it is sent to another process."""
    del request
    return {"is_late": True}


def _answer(handle: Callable[[Message], JsonObject], request: Message) -> JsonObject:
    begun = time.monotonic()
    try:
        answer = handle(request)
    except MemoryError:
        raise
    except BaseException as error:  # whatever users' code raises, SystemExit too
        answer = {"failure": Failure.of(error).to_json()}
    if "number" not in request:
        return answer
    return {**answer, "number": request["number"], "seconds": time.monotonic() - begun}


def _load(request: Message) -> JsonObject:
    """Imports the parts of a stage before the first run; a reward is constructed once."""
    for part in request["parts"]:
        if "workflow" in part:
            # imports more than rewards need
            from services.explorer.user_process.model import load_workflow

            load_workflow(part["workflow"])
        else:
            bound_reward(part)
    return {}


def _score(request: Message) -> JsonObject:
    numbers = bound_reward(request)(**decode_known(request["values"]))
    return {"numbers": {**numbers}}


def _run(channel: CallChannel, request: Message) -> JsonObject:
    from services.explorer.user_process.model import run_workflow

    return run_workflow(channel, request)


def main() -> int:
    """Answers until the explorer closes the pipe."""
    faulthandler.register(signal.SIGUSR1, file=int(sys.argv[1]), all_threads=False)
    channel = CallChannel()
    return serve_requests(partial(_handle_request, channel), None, channel)


if __name__ == "__main__":
    sys.exit(main())
