r"""The last `\boxed{}` of a response."""

_BOX = "\\boxed{"


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{}` that is closed; None if there is none."""
    start = text.rfind(_BOX)
    while start >= 0:
        inside = _balanced(text[start + len(_BOX) :])
        if inside is not None:
            return inside
        start = text.rfind(_BOX, 0, start)
    return None


def _balanced(text: str) -> str | None:
    """Returns the text up to the brace that closes the one before it."""
    depth = 1
    for index, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[:index]
    return None
