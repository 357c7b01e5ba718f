"""What is wrong in several places, said at once: one mistake hides no other."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from trinity.errors import UserError

T = TypeVar("T")


class Gathered:
    """Calls one thing after the other, and keeps what they refuse.

    gathered = Gathered()
    lengths = gathered.of(lambda: resolve_lengths(model, stage))    # None where it was refused
    gathered.raise_all()
    """

    def __init__(self) -> None:
        self._mistakes: list[str] = []

    def of(self, call: Callable[[], T]) -> T | None:
        """What the call gives; None where it raises UserError, which is kept."""
        try:
            return call()
        except UserError as error:
            self._mistakes += str(error).splitlines()
        return None

    def raise_all(self) -> None:
        """Raises: UserError with a line for each mistake, if there is one."""
        if self._mistakes:
            raise UserError("\n".join(dict.fromkeys(self._mistakes)))


def all_of(calls: Sequence[Callable[[], T]]) -> tuple[T, ...]:
    """What all of them give.

    Raises: UserError with a line for each mistake of any of them.
    """
    gathered = Gathered()
    given = [gathered.of(call) for call in calls]
    gathered.raise_all()
    return tuple(one for one in given if one is not None)
