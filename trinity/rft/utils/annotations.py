"""Marks of Trinity-RFT's import path: a class or function that is deprecated or experimental."""

from typing import TypeVar

T = TypeVar("T")


def Deprecated(part: T) -> T:  # the name of theirs
    """Returns a part as it is."""
    return part


def Experimental(part: T) -> T:  # the name of theirs
    """Returns a part as it is."""
    return part
