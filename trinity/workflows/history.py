"""Records the answers of a model in one attempt, for workflows that get them elsewhere."""

from collections.abc import Iterable

from trinity.types import Experience


class History:
    """Keeps experiences in the order of the calls, not of the answers."""

    def __init__(self) -> None:
        self._by_call: dict[int, Experience] = {}

    def note(self, made: Iterable[tuple[int, Experience]]) -> None:
        """Records answers by their calls' numbers."""
        self._by_call.update(made)

    def take(self, *, clear: bool) -> list[Experience]:
        """Returns all recorded answers, and with `clear` removes them."""
        found = [self._by_call[number] for number in sorted(self._by_call)]
        if clear:
            self._by_call.clear()
        return found
