"""Characters that steer a terminal or reorder a line, escaped where texts of others are shown."""

import io
import re
import sys

# Text from other parties may appear in a line; it must not start another line or send terminal
# control codes, nor change the order in which the characters of a line are shown.
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = (*range(32), *range(127, 160), 0x2028, 0x2029, *_BIDIRECTIONAL)
ESCAPED = {code: repr(chr(code))[1:-1] for code in _CONTROLS}
"""For `str.translate`."""


_OWN_SEQUENCES = r"\x1b\[(?:[0-9;]*[mABCDGHJK]|\?(?:25|1049)[hl])"
"""Colours, moves of the cursor and erasures, with which live tables are drawn."""
_ESCAPED_HERE = "".join(chr(code) for code in ESCAPED if chr(code) not in "\n\r\t")
_STEERING = re.compile(f"({_OWN_SEQUENCES})|[{re.escape(_ESCAPED_HERE)}]")


class TerminalStream(io.TextIOWrapper):
    """Escapes characters that would reorder a line, set a title, or write to the clipboard."""

    def write(self, text: str) -> int:
        """Writes a text; returns its length, as any stream does."""
        super().write(escape_steering(text))
        return len(text)


def escape_steering(text: str) -> str:
    """Escapes all control characters except line ends, tabs and the sequences that we draw with."""
    return _STEERING.sub(lambda found: found[1] or ESCAPED[ord(found[0])], text)


def guard_terminal() -> None:
    """Makes output replace unprintable characters and, on a terminal, escape control characters."""
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
