"""Answers requests on standard input, for processes that call users' functions."""

import json
import os
import resource
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO

from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.logs import LEVEL_VARIABLE, configure_logging
from trinity.types import JsonObject

AnswerFactories = Callable[[dict[str, Any]], Iterable[Callable[[], JsonObject]]]
"""Returns one function per answer to a request; each is called when it is its turn."""


def serve_requests(answering: AnswerFactories, memory_bytes: int) -> int:
    """Answers each line, a request as JSON, until there are no more or memory runs out.

    An answer is a line on standard output; what a function prints goes to standard error. If users'
    files cannot be loaded, that error answers every request. A process that runs out of memory says
    so and exits: its state can no longer be trusted.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    answers = _reserve_stdout()
    configure_logging("worker", os.environ.get(LEVEL_VARIABLE, "INFO"), "text")
    load_error = _load_plugins()
    for line in sys.stdin:
        try:
            for make in answering(json.loads(line)):
                _write(answers, {"error": load_error} if load_error else _answer_or_error(make))
        except MemoryError:
            text = f"it needs more than the {memory_bytes / 1024**2:,.0f} MiB of memory it may take"
            _write(answers, {"error": text, "is_last": True})
            return 1
    return 0


def _answer_or_error(make: Callable[[], JsonObject]) -> JsonObject:
    try:
        return make()
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}


def _write(answers: TextIO, answer: JsonObject) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _reserve_stdout() -> TextIO:
    """Reserves the original standard output for answers."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def _load_plugins() -> str:
    try:
        load_plugins(plugin_dirs_from_environment())
    except UserError as error:
        return str(error)
    return ""
