"""Suggestions of the nearest valid name for an unknown one."""

import difflib
from collections.abc import Iterable

FEW = 4


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most similar to `name`, if any is similar."""
    return next(iter(difflib.get_close_matches(name, list(valid), n=1)), None)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """End of a sentence that offers the nearest valid name, or all of them."""
    names = list(valid)
    near = nearest(name, names)
    if near is not None:
        return f": did you mean `{near}`?"
    if not names:
        return ": remove it"
    shown = [f"`{valid_name}`" for valid_name in names]
    return (
        ": give " + " or ".join(shown) if len(names) <= FEW else f": give one of {', '.join(shown)}"
    )
