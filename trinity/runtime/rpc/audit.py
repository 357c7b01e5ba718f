"""The audit log: refused calls and steering calls with their callers; never a secret."""

import logging

from google.protobuf.message import Message

from trinity.runtime.logs import RateLimitedLog
from trinity.runtime.security.authorization import Caller

LOGGER_NAME = "audit"
SHOWN_CHARACTERS = 120
STEERED_FIELDS = ("experiment_id", "stage", "taskset", "reason", "dry_run")
"""Request fields that name the steered item; all others stay out of the log."""

logger = logging.getLogger(LOGGER_NAME)
_limited = RateLimitedLog(logger)


def log_refusal(
    why: str, *, method: str, peer: str, caller: Caller | None, asked: str = ""
) -> None:
    """Logs a refused call; `why` is one of a few constant texts.

    Repeated refusals of one caller do not hide those of others: each caller's are counted apart.
    """
    host, port = _host_and_port(peer)
    about = {
        "method": method,
        "peer": host,
        "subject": truncated(caller.subject) if caller else "",
        "tenant": caller.tenant if caller else "",
    }
    _limited.warning(
        f"refused: {why}",
        about,
        **({"port": port} if port else {}),
        **({"asked": truncated(asked)} if asked else {}),
    )


def log_steering(*, method: str, peer: str, caller: Caller, request: Message) -> None:
    """Logs a steering call in one line."""
    extra = {"method": method, "peer": peer, "subject": truncated(caller.subject)}
    logger.info("steered", extra={**extra, "tenant": caller.tenant, **_what(request)})


def truncated(text: str) -> str:
    """Truncates a text for a log line."""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _host_and_port(peer: str) -> tuple[str, str]:
    """Splits a peer into host and port; each connection has its own port."""
    if not peer.startswith(("ipv4:", "ipv6:")):
        return peer, ""
    host, _, port = peer.rpartition(":")
    return host, port


def _what(request: Message) -> dict[str, object]:
    """Returns the fields of the request, and of its key, that name the steered item."""
    what: dict[str, object] = {}
    for field, value in request.ListFields():
        if field.name == "key":
            what |= _what(value)
        elif field.name in STEERED_FIELDS:
            what[field.name] = truncated(value) if isinstance(value, str) else value
    return what
