"""Ids as texts: their form, and names in a namespace."""

import hashlib
import re
import uuid
from collections.abc import Sequence

_FORM = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
CANONICAL_UUID = re.compile(_FORM)
"""Matching takes a seventh of the time of `uuid.UUID`, thousands of times per request."""
_MANY = re.compile(f"(?:{_FORM},)*")
_LENGTH = 36


def are_canonical(texts: Sequence[str]) -> bool:
    """Returns true when each text is a canonical UUID; one match over all of them is faster."""
    joined = "".join(f"{text}," for text in texts)
    return len(joined) == (_LENGTH + 1) * len(texts) and _MANY.fullmatch(joined) is not None


def name_uuid(namespace: uuid.UUID, name: str) -> str:
    """Returns the text of `uuid.uuid5(namespace, name)` (RFC 9562, version 5) in half the time.

    Called once for each row that is sent, stored or derived.
    """
    digest = bytearray(
        hashlib.sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    )
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest[:16].hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
