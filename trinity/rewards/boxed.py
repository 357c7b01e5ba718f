r"""The last `\boxed{}` of a response."""

_BOX = "\\boxed{"


def last_boxed(text: str) -> str | None:
    r"""What stands in the last `\boxed{}` that is closed; None where there is none."""
    start = text.rfind(_BOX)
    while start >= 0:
        inside = _balanced(text[start + len(_BOX) :])
        if inside is not None:
            return inside
        start = text.rfind(_BOX, 0, start)
    return None


def _balanced(text: str) -> str | None:
    """Up to the brace that closes the one before the text."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:place]
    return None
