"""Makes untrusted text safe to print."""

from trinity.logs import ESCAPED

_STEERING = {code: text for code, text in ESCAPED.items() if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """Escapes terminal control characters, except newlines and tabs."""
    return text.translate(_STEERING)
