"""Marks of Trinity-RFT's import path: a class or function that is deprecated or experimental."""

from typing import TypeVar

ValueT = TypeVar("ValueT")


def Deprecated(part: ValueT) -> ValueT:  # Trinity-RFT's name
    """Returns a part as it is."""
    return part


def Experimental(part: ValueT) -> ValueT:  # Trinity-RFT's name
    """Returns a part as it is."""
    return part
