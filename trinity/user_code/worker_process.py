"""Answers requests on standard input, for processes that call users' functions."""

import resource
from collections.abc import Callable
from typing import Any

from trinity.errors import UserError
from trinity.plugins import load_plugins, plugin_dirs_from_environment
from trinity.runtime.process.channel import RequestChannel
from trinity.types import JsonObject

Message = dict[str, Any]


def serve_requests(
    answer: Callable[[Message], JsonObject], memory_bytes: int | None, channel: RequestChannel
) -> int:
    """Answers each line, a request as JSON, until there are no more or memory runs out.

    If users' files cannot be loaded, that error answers every request. A process that runs out of
    memory says so and exits: its state can no longer be trusted. Without `memory_bytes` memory is
    not limited.
    """
    if memory_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    channel.configure_logging()
    load_error = _load_plugins()
    for request in channel.requests():
        try:
            channel.write(
                {"error": load_error} if load_error else _answer_or_error(answer, request)
            )
        except MemoryError:
            channel.write({"error": out_of_memory(memory_bytes), "is_last": True})
            return 1
    return 0


def _answer_or_error(answer: Callable[[Message], JsonObject], request: Message) -> JsonObject:
    try:
        return answer(request)
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # whatever a user's function raises
        return {"error": f"{type(error).__name__}: {error}"}


def out_of_memory(memory_bytes: int | None) -> str:
    """Returns the error message of a process that has used up its memory."""
    if memory_bytes is None:
        return "it needs more memory than this machine has"
    return f"it needs more than the {memory_bytes / 1024**2:,.0f} MiB of memory it may take"


def _load_plugins() -> str:
    try:
        load_plugins(plugin_dirs_from_environment())
    except UserError as error:
        return str(error)
    return ""
