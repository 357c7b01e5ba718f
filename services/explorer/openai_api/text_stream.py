"""The text of a response while its tokens come."""

from collections.abc import Callable, Sequence

from trinity.workflows.sampling import until_stop


class TextStream:
    """Gives out text once it is certain: no half character, nothing of a text to stop at.

    text = stream.add([12, 7])  # what may be shown now
    rest = stream.end(whole)    # what is left of the whole response
    """

    def __init__(self, decode: Callable[[list[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = stop
        self._held_back = max((len(one) for one in stop), default=1) - 1
        self._tokens: list[int] = []
        self._before = 0
        self._read = 0
        self._text = ""
        self._num_shown = 0

    def add(self, token_ids: Sequence[int]) -> str:
        """What is certain with these tokens, and was not before.

        A few tokens before the new ones are decoded with them: what one becomes depends on those.
        """
        self._tokens += token_ids
        known = self._decode(self._tokens[self._before : self._read])
        more = self._decode(self._tokens[self._before :])
        if len(more) > len(known) and not more.endswith("\ufffd"):
            self._text += more[len(known) :]
            self._before, self._read = self._read, len(self._tokens)
        return self._certain()

    def end(self, whole: str) -> str:
        """The rest of the response, as it is decoded in one piece."""
        return whole[self._num_shown :]

    def _certain(self) -> str:
        """All that goes before a text to stop at, or what cannot be the beginning of one."""
        waiting = self._text[self._num_shown :]
        shown = until_stop(waiting, self._stop)
        if shown == waiting:
            shown = waiting[: max(0, len(waiting) - self._held_back)]
        self._num_shown += len(shown)
        return shown
