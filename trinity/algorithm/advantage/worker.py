"""Calls the advantage functions that users bring; runs as a process of its own.

    python -m trinity.algorithm.advantage.worker

A line of standard input is a request as JSON: the function's name, its arguments, and the rewards
of one group; without rewards the function is only loaded. The line of standard output that answers
it holds the advantages or an error. What a function prints goes to standard error.
"""

import json
import os
import sys
from typing import TextIO

import numpy as np

from trinity.algorithm.advantage import ADVANTAGES
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.types import JsonObject, JsonValue


def main() -> None:
    """Answer requests until there are no more."""
    answers = _own_output()
    load_error = _load_plugins()
    for line in sys.stdin:
        answer: JsonObject = {"error": load_error} if load_error else _answer(json.loads(line))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _own_output() -> TextIO:
    """Keep the way to whoever asks for ourselves."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _load_plugins() -> str:
    try:
        load_plugins(plugin_dirs_from_environment())
    except UserError as error:
        return str(error)
    return ""


def _answer(request: JsonObject) -> JsonObject:
    try:
        function = ADVANTAGES.get(str(request["name"]))
        if request["rewards"] is None:
            return {}
        arguments = request["arguments"]
        assert isinstance(arguments, dict)
        advantages = function(np.array(request["rewards"], dtype=np.float64), **arguments)
        values: JsonValue = np.asarray(advantages, dtype=np.float64).tolist()
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}
    return {"advantages": values}


if __name__ == "__main__":
    main()
