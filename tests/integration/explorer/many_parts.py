"""A reward with so many parts that a result is large, for the explorer's processes to import."""


def many_parts() -> dict[str, float]:
    """Returns about 1.2 MB of names."""
    return {"part" * 1000 + str(number): 0.0 for number in range(300)}
