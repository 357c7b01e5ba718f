"""The workers of a host that does not lead: python -m services.explorer.engine.vllm_headless

Reads the engine's arguments from standard input, which stays open: its end is that of the service,
and ends the workers too. The last line of the output says how the workers ended.
"""

import json
import os
import signal
import sys
import threading

from services.explorer.engine.vllm_options import detect_hardware, prepare_environment
from trinity.config.model_code_policy import trusts_model_code
from trinity.runtime.json_values import JsonObject

MAX_REASON_CHARACTERS = 500


def main() -> int:
    """Runs the workers until one of them ends; that is never a success."""
    arguments = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_service, daemon=True).start()
    try:
        _run_workers(arguments)
        reason = "one of its workers has ended"
    except Exception as error:  # reported to the leader, with the traceback in the log
        sys.excepthook(type(error), error, error.__traceback__)
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:MAX_REASON_CHARACTERS]
    sys.stdout.write(f"\n{reason}\n")
    return 1


def _run_workers(arguments: JsonObject) -> None:
    """Starts the workers and waits for the end of the first."""
    model = str(arguments["model"])
    if arguments.get("trust_remote_code"):  # the operator of this host decides too
        arguments["trust_remote_code"] = trusts_model_code(True, model)
    prepare_environment(model, detect_hardware())
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    config = AsyncEngineArgs(**arguments).create_engine_config(headless=True)
    executor = MultiprocExecutor(config, monitor_workers=False)
    executor.start_worker_monitor(inline=True)


def _end_with_service() -> None:
    """Kills all processes of this group, workers in a collective among them."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
