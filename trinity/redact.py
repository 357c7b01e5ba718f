"""Redacts passwords in addresses."""

import re

HIDDEN = "***"

_IN_ADDRESS = re.compile(r"(?P<user>://[^\s:/@]*):[^\s/@]+@")


def redact_passwords(text: str) -> str:
    """Returns the text with `***` in place of the password of each address in it."""
    return _IN_ADDRESS.sub(rf"\g<user>:{HIDDEN}@", text) if "://" in text else text
