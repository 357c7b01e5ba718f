"""What others wrote, as it may be printed."""

from trinity.logs import ESCAPED

_STEERING = {code: text for code, text in ESCAPED.items() if chr(code) not in "\n\t"}


def harmless(text: str) -> str:
    """The text with nothing in it that steers a terminal; its lines and tabs stay."""
    return text.translate(_STEERING)
