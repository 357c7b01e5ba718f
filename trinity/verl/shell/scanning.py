"""Finds the ends of quotes and expansions in a shell text."""

from trinity.errors import UserError

CONTINUATIONS = ("\\\n", "\\\r\n")
"""Line continuations, unless they are in single quotes."""

_CLOSERS = {"$(": ")", "${": "}", "((": ")"}


class Unterminated(UserError):
    """A quote or an expansion without its end; `position` is where it begins."""

    def __init__(self, position: int, opener: str) -> None:
        super().__init__(f"`{opener}` is not closed")
        self.position = position


def end_of_piece(text: str, start: int) -> int:
    """Index after the quote, expansion, escape or plain character that begins at `start`."""
    first = text[start]
    if text.startswith("\\\r\n", start):
        return start + 3
    if first == "\\":
        return min(start + 2, len(text))
    if first == "'" or text.startswith("$'", start):
        return _after(text, "'", text.index("'", start) + 1, start)
    if first == '"':
        return _end_of_double_quotes(text, start)
    if first == "`":
        return _after(text, "`", start + 1, start)
    opener = text[start : start + 2]
    if opener in _CLOSERS:
        return _end_of_nested(text, start, opener)
    return start + 1


def _after(text: str, closer: str, begin: int, start: int) -> int:
    end = text.find(closer, begin)
    if end < 0:
        raise Unterminated(start, closer)
    return end + 1


def _end_of_double_quotes(text: str, start: int) -> int:
    position = start + 1
    while position < len(text):
        if text[position] == '"':
            return position + 1
        # an apostrophe quotes nothing here
        position = position + 1 if text[position] == "'" else end_of_piece(text, position)
    raise Unterminated(start, '"')


def _end_of_nested(text: str, start: int, opener: str) -> int:
    """Index after the closer of an opener, which may contain nested ones of the same kind."""
    closer = _CLOSERS[opener]
    position, depth = start + len(opener), len(opener) if opener == "((" else 1
    while position < len(text):
        if text[position] == closer:
            depth -= 1
            position += 1
            if depth == 0:
                return position
        elif closer == ")" and text[position] == "(":
            depth += 1
            position += 1
        else:
            position = end_of_piece(text, position)
    raise Unterminated(start, opener)
