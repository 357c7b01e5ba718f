"""Incremental text of a response."""

from collections.abc import Callable, Sequence

from trinity.workflows.sampling import until_stop


class TextStream:
    """Releases text once it is certain: no partial character, and no part of a stop text.

    text = stream.add([12, 7])  # text that is certain now
    rest = stream.end(whole)    # the remainder of the whole response
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._held_back = max((len(text) for text in stop), default=1) - 1
        self._tokens: list[int] = []
        self._before = 0
        self._read = 0
        self._text = ""
        self._num_shown = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """Returns the text that these tokens make certain.

        A few earlier tokens are decoded with the new ones, whose text depends on them.
        """
        self._tokens += token_ids
        known = self._decode(self._tokens[self._before : self._read])
        more = self._decode(self._tokens[self._before :])
        if len(more) > len(known) and not more.endswith("\ufffd"):
            self._text += more[len(known) :]
            self._before, self._read = self._read, len(self._tokens)
        return self._certain()

    def end(self, whole: str) -> str:
        """Returns the rest of the response, which was decoded in one piece."""
        return whole[self._num_shown :]

    def _certain(self) -> str:
        """Returns the new text before a stop text, without a tail that may begin one."""
        waiting = self._text[self._num_shown :]
        shown = until_stop(waiting, self._stop)
        if shown == waiting:
            shown = waiting[: max(0, len(waiting) - self._held_back)]
        self._num_shown += len(shown)
        return shown
