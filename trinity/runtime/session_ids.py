"""Ids of sessions and their turns, which explorers make and the buffer verifies."""

import uuid

from trinity.runtime.uuids import name_uuid

SESSION_NAMESPACE = uuid.UUID("7c9be3a4-51d2-5a0f-8a4e-2f1d6a90c3b8")


def session_id(assignment_id: str, run: int) -> str:
    """Returns the id of the session of a run: the same for all attempts at it."""
    return name_uuid(SESSION_NAMESPACE, f"{assignment_id}/{run}")


def turn_id(session: str, parent: str, prompt_sha256: bytes, ordinal: int) -> str:
    """Returns the id of a turn, which names its place in the tree of its session."""
    return name_uuid(SESSION_NAMESPACE, f"{session}/{parent}/{prompt_sha256.hex()}/{ordinal}")
