"""Output to a terminal: text of others may stand in it, and must not steer the terminal."""

import io
import re
import sys

from trinity.control_characters import ESCAPED

_OWN_SEQUENCES = r"\x1b\[(?:[0-9;]*[mABCDGHJK]|\?(?:25|1049)[hl])"
"""Colours, moves of the cursor and erasures, with which live tables are drawn."""
_ESCAPED_HERE = "".join(chr(code) for code in ESCAPED if chr(code) not in "\n\r\t")
_STEERING = re.compile(f"({_OWN_SEQUENCES})|[{re.escape(_ESCAPED_HERE)}]")


class TerminalStream(io.TextIOWrapper):
    """Escapes what would reorder a line, set a title, or write to the clipboard."""

    def write(self, text: str) -> int:
        """Writes a text; returns its length, as any stream does."""
        super().write(escape_steering(text))
        return len(text)


def escape_steering(text: str) -> str:
    """Escapes all control characters except line ends, tabs and the sequences that we draw with."""
    return _STEERING.sub(lambda found: found[1] or ESCAPED[ord(found[0])], text)


def guard_terminal() -> None:
    """Makes output replace what cannot be shown and, on a terminal, escape what would steer it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        stream.reconfigure(errors="replace")
        if stream.isatty():
            stream.flush()
            guarded = TerminalStream(
                stream.buffer, stream.encoding, errors="replace", line_buffering=True
            )
            setattr(sys, name, guarded)
