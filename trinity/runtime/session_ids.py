"""Ids of sessions and their turns, which explorers make and the buffer verifies."""

import hashlib
import hmac
import uuid

from trinity.runtime.uuids import name_uuid

SESSION_NAMESPACE = uuid.UUID("7c9be3a4-51d2-5a0f-8a4e-2f1d6a90c3b8")


def session_id(assignment_id: str, run: int) -> str:
    """Returns the id of the session of a run: the same for all attempts at it."""
    return name_uuid(SESSION_NAMESPACE, f"{assignment_id}/{run}")


def client_session_id(experiment_id: str, stage: str, name: str) -> str:
    """Returns the id of a client's session, by the name that the client has chosen."""
    return name_uuid(SESSION_NAMESPACE, f"{experiment_id}/{stage}/client/{name}")


def session_secret(session_key: bytes, session: str) -> str:
    """Returns the secret part of a session's address."""
    return hmac.digest(session_key, session.encode(), hashlib.sha256).hex()


def turn_id(session: str, parent: str, prompt_sha256: bytes, ordinal: int) -> str:
    """Returns the id of a turn, which names its place in the tree of its session."""
    return name_uuid(SESSION_NAMESPACE, f"{session}/{parent}/{prompt_sha256.hex()}/{ordinal}")
