"""Calls the functions that users bring; runs as a process of its own.

    python -m trinity.operators.worker 2147483648

The argument is how many bytes of memory it may take for its data. A line of standard input is a
request as JSON: the function's kind, name and arguments, and parts, each of them samples for one
call. One line of standard output answers each part, with what the function gave or an error, in
their order. Without parts the function is loaded, and one line says what it needs. What a function
prints goes to standard error. Who runs out of memory says so and ends: what is left of it is not
to be trusted.
"""

import dataclasses
import json
import os
import resource
import sys
from collections.abc import Iterator
from typing import TextIO

from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.wire import Message
from trinity.errors import UserError
from trinity.operators.kinds import KINDS
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.types import JsonObject


def main(memory_bytes: int) -> int:
    """Answer requests until there are no more, or no more memory."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    answers = _own_output()
    load_error = _load_plugins()
    for line in sys.stdin:
        try:
            for answer in _answers(json.loads(line), load_error):
                answers.write(json.dumps(answer) + "\n")
                answers.flush()
        except MemoryError:
            text = f"it needs more than the {memory_bytes / 1024**2:,.0f} MiB of memory it may take"
            answers.write(json.dumps({"error": text, "is_last": True}) + "\n")
            answers.flush()
            return 1
    return 0


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


def _answers(request: Message, load_error: str) -> Iterator[JsonObject]:
    parts = request["parts"]
    for part in [None] if parts is None else parts:
        yield {"error": load_error} if load_error else _answer(request, part)


def _answer(request: Message, part: Message | None) -> JsonObject:
    kind, name, arguments = KINDS[request["kind"]], request["name"], request["arguments"]
    try:
        if part is None:
            return dataclasses.asdict(needs_of(kind.registry.get(name), arguments))
        answer = kind.call(name, kind.given_from_json(part), arguments)
        return kind.answer_to_json(answer)
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
