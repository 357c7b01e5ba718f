"""Redaction of secret values: keys, passwords, tokens."""

import re
from typing import Any

from trinity.masking import HIDDEN, without_passwords

NO_SECRETS = (None, "", "EMPTY")
"""Values that are not secret; `EMPTY` is the placeholder for a key that is not needed."""
_SECRET_NAME = re.compile(
    r"(api_?key|secret|passw(or)?d|passphrase|credential|(access|auth|bearer|refresh|hf)_?token"
    r"|private_?key|(^|_)token)$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"^[A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD|PASS|PWD)[A-Z0-9_]*$")


def is_secret(key: str) -> bool:
    """True if the value of a dotted key must not be shown."""
    name = key.rpartition(".")[2]
    return bool(_SECRET_NAME.search(name) or _SECRET_VARIABLE.match(name))


def hidden(key: str, value: Any) -> Any:
    """The value with all secrets in it redacted, at any depth."""
    if isinstance(value, dict):
        return {name: hidden(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(key, item) for item in value]
    if is_secret(key) and value not in NO_SECRETS:
        return HIDDEN
    return without_passwords(value) if isinstance(value, str) else value


def shown(key: str, value: Any, most: int = 80) -> str:
    """A value for use in a message, written as in YAML."""
    value = hidden(key, value)
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    text = " ".join(text.split()) or "''"
    return text if len(text) <= most else f"{text[: most - 3]}..."
