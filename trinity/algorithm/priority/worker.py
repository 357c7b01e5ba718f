"""Calls the priority functions that users bring; runs as a process of its own.

    python -m trinity.algorithm.priority.worker

A line of standard input is a request as JSON: the function's name, its arguments, and candidates.
One line of standard output answers it, with their priorities or an error. What a function prints
goes to standard error.
"""

import json
import os
import sys
from typing import TextIO

from trinity.algorithm.priority import PRIORITIES
from trinity.algorithm.priority.candidate import Candidate
from trinity.algorithm.priority.computing import priorities_of
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.types import JsonObject


def main() -> None:
    """Answer requests until there are no more."""
    answers = _own_output()
    load_error = _load_plugins()
    for line in sys.stdin:
        answer = {"error": load_error} if load_error else _answer(json.loads(line))
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
    name, arguments, listed = request["name"], request["arguments"], request["candidates"]
    assert isinstance(name, str) and isinstance(arguments, dict) and isinstance(listed, list)
    try:
        candidates = [Candidate(**one) for one in listed]  # type: ignore[arg-type]
        computed = priorities_of(PRIORITIES.get(name), arguments, candidates)
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}
    return {"priorities": list(computed)}


if __name__ == "__main__":
    main()
