"""What a model answered in one attempt at a run, kept for whoever asked for it elsewhere."""

from collections.abc import Iterable

from trinity.types import Experience


class History:
    """Experiences in the order in which the calls were made, whichever was answered first."""

    def __init__(self) -> None:
        self._by_call: dict[int, Experience] = {}

    def note(self, made: Iterable[tuple[int, Experience]]) -> None:
        """Keep the answers to calls, by their numbers."""
        self._by_call.update(made)

    def take(self, *, clear: bool) -> list[Experience]:
        """All that is kept; with `clear` it is kept no longer."""
        found = [self._by_call[number] for number in sorted(self._by_call)]
        if clear:
            self._by_call.clear()
        return found
