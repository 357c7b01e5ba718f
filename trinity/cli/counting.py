"""Numbers with their nouns."""


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `1,000 ranks`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
