"""Splits shell text into tokens."""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from trinity.errors import UserError

CONTINUATIONS = ("\\\n", "\\\r\n")
"""Line continuations, unless they are in single quotes."""

_CLOSERS = {"$(": ")", "${": "}", "((": ")", "$[": "]"}
_NESTED = {")": "(", "]": "["}
"""Brackets that count within an expansion, without a sign in front."""
_PROCESSES = (">(", "<(")
"""Openers of commands that stand where a file may."""

REDIRECTIONS = ("&>>", "&>", "<<<", "<<-", "<<", ">>", ">&", "<&", ">|", "<", ">")
_OPERATORS = (*REDIRECTIONS, ";;", "&&", "||", "|&", ";", "&", "|", "(", ")")
_ARRAY_OPENING = re.compile(r"[A-Za-z_]\w*\+?=$")
_ANSI = re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL)
_BLANK = " \t\r"


class Unterminated(UserError):
    """A quote or an expansion without its end; `position` is where it begins."""

    def __init__(self, position: int, opener: str) -> None:
        super().__init__(f"`{opener}` is not closed")
        self.position = position


def scan_piece(text: str, start: int) -> int:
    """Index after the quote, expansion, escape or plain character that begins at `start`."""
    first = text[start]
    if text.startswith("\\\r\n", start):
        return start + 3
    if first == "\\":
        return min(start + 2, len(text))
    if text.startswith("$'", start):
        if (found := _ANSI.match(text, start)) is None:
            raise Unterminated(start, "'")
        return found.end()
    if first == "'":
        return _after(text, "'", start + 1, start)
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
        # an apostrophe does not quote here
        position = position + 1 if text[position] == "'" else scan_piece(text, position)
    raise Unterminated(start, '"')


def _end_of_nested(text: str, start: int, opener: str) -> int:
    """Index after the closer of an opener, which may contain nested ones of the same kind."""
    closer = _CLOSERS.get(opener, ")")
    position, depth = start + len(opener), len(opener) if opener == "((" else 1
    while position < len(text):
        if text[position] == closer:
            depth -= 1
            position += 1
            if depth == 0:
                return position
        elif text[position] == _NESTED.get(closer):
            depth += 1
            position += 1
        else:
            position = scan_piece(text, position)
    raise Unterminated(start, opener)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A word as written, with its quotes; an array assignment also has its elements."""

    kind: Literal["word", "array", "operator"]
    text: str
    """A newline is the operator `\\n`."""
    line: int
    elements: tuple["Token", ...] = ()


class Lexer:
    """Cuts one text into tokens.

    tokens = Lexer(text, "run.sh").tokens()
    """

    def __init__(
        self, text: str, name: str, first_line: int = 1, *, on_one_line: bool = False
    ) -> None:
        self._text = text
        self._name = name
        self._first_line = first_line
        newlines = () if on_one_line else enumerate(text)
        self._newlines = [i for i, sign in newlines if sign == "\n"]
        self._position = 0
        self._documents: list[str] = []
        """Delimiters of the here-documents that start on this line."""

    def tokens(self) -> list[Token]:
        """Returns all tokens.

        Raises: UserError naming the line of a quote that is not closed.
        """
        try:
            return list(self._tokens())
        except Unterminated as error:
            line = self._line(error.position)
            raise UserError(f"{self._name}:{line}: {error}: close it") from error

    def _tokens(self, end: str = "") -> Iterator[Token]:
        """Yields tokens up to the operator `end`, which is consumed but not yielded."""
        while (start := self._skip_blanks()) < len(self._text):
            operator = self._operator_at(start)
            if operator is None:
                word = self._word(start)
                if not self._is_descriptor(word):
                    yield word
                continue
            self._position = start + len(operator)
            if operator == end:
                return
            if operator in ("<<", "<<-"):
                self._documents.append(self._word(self._skip_blanks()).text.strip("'\"\\"))
                continue
            yield Token(kind="operator", text=operator, line=self._line(start))
            if operator == "\n":
                self._skip_documents()
        if end:
            raise Unterminated(max(self._position - 1, 0), "(")

    def _is_descriptor(self, word: Token) -> bool:
        """True for a file descriptor, such as the 2 of `2>&1`."""
        return word.text.isdigit() and self._text[self._position : self._position + 1] in ("<", ">")

    def _operator_at(self, start: int) -> str | None:
        if self._text[start] == "\n":
            return "\n"
        if self._text.startswith(("((", *_PROCESSES), start):
            return None
        found = (operator for operator in _OPERATORS if self._text.startswith(operator, start))
        return next(found, None)

    def _skip_blanks(self) -> int:
        """Moves to the next token; comments and line continuations count as blanks."""
        text = self._text
        while self._position < len(text):
            if text[self._position] in _BLANK:
                self._position += 1
            elif text.startswith(CONTINUATIONS, self._position):
                self._position = text.index("\n", self._position) + 1
            elif self._position == len(text) - 1 and text.endswith("\\"):
                self._position = len(text)  # there is no next line to continue
            elif text[self._position] == "#":
                end = text.find("\n", self._position)
                self._position = len(text) if end < 0 else end
            else:
                break
        return self._position

    def _word(self, start: int) -> Token:
        text, position = self._text, start
        while position < len(text) and not self._ends_word(position, start):
            if text.startswith(_PROCESSES, position):
                position = _end_of_nested(text, position, text[position : position + 2])
                continue
            position = scan_piece(text, position)
            if text[position : position + 1] == "(" and _ARRAY_OPENING.match(text[start:position]):
                self._position = position + 1
                elements = tuple(t for t in self._tokens(")") if t.kind == "word")
                return self._token("array", start, position, elements)
        self._position = position
        return self._token("word", start, position)

    def _ends_word(self, position: int, start: int) -> bool:
        text = self._text
        if text[position] in _BLANK or text[position] == "\n":
            return True
        if text.startswith(("((", *_PROCESSES), position) and position == start:
            return False
        return text[position] in "();&|<>"

    def _token(
        self,
        kind: Literal["word", "array"],
        start: int,
        end: int,
        elements: tuple[Token, ...] = (),
    ) -> Token:
        written = self._text[start:end]
        return Token(kind=kind, text=written, line=self._line(start), elements=elements)

    def _skip_documents(self) -> None:
        for word in self._documents:
            while self._position < len(self._text):
                end = self._text.find("\n", self._position)
                end = len(self._text) if end < 0 else end
                line = self._text[self._position : end].strip()
                self._position = min(end + 1, len(self._text))
                if line == word:
                    break
        self._documents.clear()

    def _line(self, position: int) -> int:
        return self._first_line + bisect_right(self._newlines, position - 1)
