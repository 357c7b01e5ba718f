"""Characters that steer a terminal or reorder a line, escaped where texts of others are shown."""

# Text from other parties may appear in a line; it must not start another line or send terminal
# control codes, nor change the order in which the characters of a line are shown.
_BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = (*range(32), *range(127, 160), 0x2028, 0x2029, *_BIDIRECTIONAL)
ESCAPED = {code: repr(chr(code))[1:-1] for code in _CONTROLS}
"""For `str.translate`."""
