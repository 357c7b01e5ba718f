"""Calls the advantage functions that users bring; runs as a process of its own.

    python -m trinity.algorithm.advantage.worker

A line of standard input is a request as JSON: the function's name, its arguments, and parts, each
of them samples for one call. One line of standard output answers each part, with its advantages or
an error, in their order. Without parts the function is loaded, and one line says what it needs.
What a function prints goes to standard error.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from trinity.algorithm.advantage import ADVANTAGES
from trinity.algorithm.advantage.needs import needs_of
from trinity.algorithm.advantage.samples import Advantages
from trinity.algorithm.advantage.wire import Message, advantages_to_json, samples_from_json
from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.types import JsonObject


def main() -> None:
    """Answer requests until there are no more."""
    answers = _own_output()
    load_error = _load_plugins()
    for line in sys.stdin:
        for answer in _answers(json.loads(line), load_error):
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


def _answers(request: Message, load_error: str) -> Iterator[JsonObject]:
    parts = request["parts"]
    for part in [None] if parts is None else parts:
        yield {"error": load_error} if load_error else _answer(request, part)


def _answer(request: Message, part: Message | None) -> JsonObject:
    try:
        function = ADVANTAGES.get(request["name"])
        if part is None:
            return dataclasses.asdict(needs_of(function, request["arguments"]))
        advantages = function(samples_from_json(part), **request["arguments"])
        if not isinstance(advantages, Advantages):
            raise TypeError(
                f"it gave {type(advantages).__name__}, where Advantages of "
                "trinity.algorithm.advantage.samples is expected"
            )
        return advantages_to_json(advantages)
    except UserError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
