"""Runs users' rewards and workflows; runs as a separate process.

    python -m services.explorer.user_process.worker 7

The argument is a file descriptor: on SIGUSR1 the process writes its traceback there. A request has
a `kind`: `load` imports the parts of a stage, `reward` scores an answer, `workflow` makes runs.
During a workflow, lines with `call` ask the model, and lines with `reply` answer them. A request
has a `number` that its answer has, too, with the `seconds` it took, and one with `begin_by` is not
begun after that time: it waited for too long behind others, and is sent to another process.
"""

import faulthandler
import math
import signal
import sys
import time
from dataclasses import asdict
from functools import partial

from services.explorer.user_process.calls import CallChannel
from trinity.plugins import REWARDS
from trinity.rewards.reward import BoundReward, RewardSource
from trinity.types import JsonObject
from trinity.user_code.values import Failure, PartRef, decode_known
from trinity.user_code.worker_process import Message, serve_requests


def bound_reward(request: Message) -> BoundReward:
    """Constructs the reward of a request.

    Raises: UserError when it is missing or refuses its arguments, and its constructor's errors.
    """
    ref: PartRef[RewardSource] = PartRef(**request["part"])
    return BoundReward(ref.resolve(REWARDS), request["args"], request["part"]["name"])


def answer_request(channel: CallChannel, request: Message) -> JsonObject:
    """Returns the answer to a request; a failure of users' code is an answer, too."""
    begun = time.monotonic()
    try:
        answer = _answer(channel, request)
    except MemoryError:
        raise
    except BaseException as error:  # whatever users' code raises, SystemExit too
        answer = {"failure": asdict(Failure.of(error))}
    if "number" not in request:
        return answer
    return {**answer, "number": request["number"], "seconds": time.monotonic() - begun}


def _answer(channel: CallChannel, request: Message) -> JsonObject:
    if time.monotonic() > request.get("begin_by", math.inf):
        return {"is_late": True}
    match request["kind"]:
        case "load":
            return _load(request)
        case "reward":
            numbers = bound_reward(request)(**decode_known(request["values"]))
            return {"numbers": {**numbers}}
    from services.explorer.user_process.model import run_workflow  # imports more than rewards need

    return run_workflow(channel, request)


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


def main() -> int:
    """Answers until the explorer closes the pipe."""
    faulthandler.register(signal.SIGUSR1, file=int(sys.argv[1]), all_threads=False)
    channel = CallChannel()
    return serve_requests(partial(answer_request, channel), None, channel)


if __name__ == "__main__":
    sys.exit(main())
